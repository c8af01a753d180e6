"""A worker that says what it is told, or does what it is told to."""

import os
import signal
import sys

from attnlab.bench import workers


def _hello():
    if sys.argv[2:] == ["refuse"]:
        raise RuntimeError("no such backend\nand more")
    return {"cores": 2}


def _answer(order, send):
    match order["do"]:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            print("the last words", file=sys.stderr, flush=True)
            os._exit(3)
        case "wait":
            signal.pause()
        case _:
            send(said=order["do"], pid=os.getpid(), marked=os.environ.get("MARK"))


if __name__ == "__main__":
    workers.serve(_hello, _answer)
