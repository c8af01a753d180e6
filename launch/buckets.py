"""A bucket that is to have the results, looked at before anything is started."""

from request import BUCKET, Request
from steps import Steps


def look(request: Request, steps: Steps) -> None:
    """Asks for the bucket of a run, and says what a mount of it will not do.

    Raises:
      Failed: it is not there, or not to be seen from here.
    """
    steps.need("gcloud", "cloud.google.com/sdk/docs/install")
    bucket = f"{BUCKET}{request.bucket}"
    wanted = "--format=value(hierarchical_namespace.enabled)"
    answer = steps.ask("gcloud", "storage", "buckets", "describe", bucket, wanted).strip()
    if not steps.dry_run and answer != "True":
        steps.say(
            f"note: {bucket} has no hierarchical namespace, so that a host that is killed while it "
            "renames a checkpoint leaves a part of it; make another with "
            "--enable-hierarchical-namespace"
        )
