"""The recurrent systems in NumPy float64, written from the papers: one sentence and step at a time.

No batch, no padding: a sentence is exactly as long as it is. Parameters are read from the nested
dictionaries of the models, so their names are all that is shared with the library.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def dense(p, x):
    return x @ p["kernel"] + p.get("bias", 0.0)


def gru(p, state, x):
    """Bahdanau et al. 2014, §A.1.1; x holds what the input adds to z, r and the candidate."""
    n = len(state)
    x_z, x_r, x_s = x[:n], x[n : 2 * n], x[2 * n :]
    z = sigmoid(x_z + state @ p["gates"][:, :n])
    r = sigmoid(x_r + state @ p["gates"][:, n:])
    candidate = np.tanh(x_s + (r * state) @ p["candidate"])
    return (1 - z) * state + z * candidate


def lstm(p, state, x):
    """Zaremba et al. 2014, §3.1, in the order i, f, o, g."""
    c, h = state
    i, f, o, g = np.split(x + h @ p["gates"], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)


def tanh_rnn(p, state, x):
    return np.tanh(x + state @ p["recurrent"])


def run(step, p, state, inputs):
    """All states of one layer, for inputs [S, D]."""
    states = []
    for x in inputs:
        state = step(p["cell"], state, dense(p["input"], x))
        states.append(state)
    return states


def read_both_ways(step, p, zero, inputs):
    """Forward and backward states, each in the order of the input."""
    forward = run(step, p["forward"]["layer_0"], zero, inputs)
    backward = run(step, p["backward"]["layer_0"], zero, inputs[::-1])[::-1]
    return forward, backward


def maxout(t):
    return np.array([max(t[2 * j], t[2 * j + 1]) for j in range(len(t) // 2)])


def rnn_search(p, source, read, *, output_state="before"):
    """Bahdanau et al. 2014, §A: logits [T, V] and weights [T, S] for one source.

    Args:
      p: parameters.
      source: ids.
      read: what the decoder reads, beginning with BOS.
      output_state: which state the output layer reads.
    """
    n = p["start"]["kernel"].shape[1]
    forward, backward = read_both_ways(
        gru, p["encoder"], np.zeros(n), p["source_embed"]["embedding"][source]
    )
    h = [np.concatenate(pair) for pair in zip(forward, backward, strict=True)]
    state = np.tanh(dense(p["start"], backward[0]))
    v = p["decoder"]["score"]["kernel"][0]
    all_logits, all_weights = [], []
    for token in read:
        y = p["target_embed"]["embedding"][token]
        e = [
            v @ np.tanh(state @ p["decoder"]["query"]["kernel"] + dense(p["align_keys"], h_j))
            for h_j in h
        ]
        weights = softmax(np.array(e))
        c = sum(a * h_j for a, h_j in zip(weights, h, strict=True))
        before = state
        x = dense(p["decoder"]["input"], y) + c @ p["context_to_gates"]["kernel"]
        state = gru(p["decoder"]["cell"], state, x)
        shown = before if output_state == "before" else state
        t = maxout(dense(p["maxout"], np.concatenate([shown, y, c])))
        all_logits.append(dense(p["logits"]["vocabulary"], t))
        all_weights.append(weights)
    return np.array(all_logits), np.array(all_weights)


def rnn_enc_dec(p, source, read, *, output_state="before"):
    """The same with the last forward state in place of every context: logits [T, V], no weights."""
    n = p["start"]["kernel"].shape[1]
    c = run(gru, p["encoder"], np.zeros(n), p["source_embed"]["embedding"][source])[-1]
    state = np.tanh(dense(p["start"], c))
    logits = []
    for token in read:
        y = p["target_embed"]["embedding"][token]
        before = state
        q = p["decoder"]["gru"]
        state = gru(q["cell"], state, dense(q["input"], np.concatenate([y, c])))
        shown = before if output_state == "before" else state
        t = maxout(dense(p["maxout"], np.concatenate([shown, y, c])))
        logits.append(dense(p["logits"]["vocabulary"], t))
    return np.array(logits), None


def up_to(size, logits):
    """Of a short sentence the first logits; of a long one, words near the end have none (§3.1)."""
    return np.append(logits, np.full(size, -np.inf))[:size]


def luong(p, source, read, *, score, window, half_width, input_feeding, reverse_source):
    """Luong et al. 2015, §3: logits [T, V] and weights [T, S] for one source, or no weights.

    The source is reversed as in the paper; its states are put back into the order of the words.
    """
    words = p["source_embed"]["embedding"][source[::-1] if reverse_source else source]
    num_layers = len(p["encoder"])
    n = p["encoder"]["layer_0"]["cell"]["gates"].shape[0]
    states, x = [], words
    for layer in range(num_layers):
        outputs = run(lstm, p["encoder"][f"layer_{layer}"], (np.zeros(n), np.zeros(n)), x)
        states.append(outputs[-1])
        x = [h for _, h in outputs]
    h_bar = np.array(x[::-1] if reverse_source else x)
    q = p["decoder"]
    attend = q.get("attend")
    fed = np.zeros(n)
    all_logits, all_weights = [], []
    for t, token in enumerate(read):
        x = p["target_embed"]["embedding"][token]
        for layer in range(num_layers):
            if not input_feeding:
                cell = q["stack"][f"layer_{layer}"]["cell"]
                gates = dense(q["stack"][f"layer_{layer}"]["input"], x)
            elif layer == 0:
                cell, gates = q["stack"]["cell_0"], dense(q["input"], x) + dense(q["fed"], fed)
            else:
                cell, gates = q["stack"][f"cell_{layer}"], dense(q["stack"][f"input_{layer}"], x)
            states[layer] = lstm(cell, states[layer], gates)
            x = states[layer][1]
        h = x
        if score is None:
            all_logits.append(dense(p["logits"]["vocabulary"], h))
            continue
        size = len(source)
        logits = {
            "location": lambda h: up_to(len(source), h @ attend["score"]["kernel"][0]),
            "dot": lambda h: h_bar @ h,
            "general": lambda h: h_bar @ p["keys"]["kernel"] @ h,
            "concat": lambda h: (
                np.tanh(h_bar @ p["keys"]["kernel"] + h @ attend["query"]["kernel"])
                @ attend["score"]["kernel"][0]
            ),
        }[score](h)
        s = np.arange(size)
        center = t
        if window == "local-p":
            hidden = np.tanh(dense(attend["center_hidden"], h))
            center = size * sigmoid(dense(attend["center"], hidden)[0])
        weights = np.zeros(size)
        seen = np.full(size, True) if window == "global" else abs(s - center) <= half_width
        if seen.any():
            weights[seen] = softmax(logits[seen])
        if window == "local-p":
            weights = weights * np.exp(-((s - center) ** 2) / (2 * (half_width / 2) ** 2))
        fed = np.tanh(dense(attend["combine"], np.concatenate([weights @ h_bar, h])))
        all_logits.append(dense(p["logits"]["vocabulary"], fed))
        all_weights.append(weights)
    return np.array(all_logits), np.array(all_weights) if all_weights else None


def nmt_attn(p, source, read):
    """trax's LSTMSeq2SeqAttn: logits [T, V] and weights, a mean over the heads, [T, S]."""
    n = p["source_embed"]["embedding"].shape[1]

    def lstms(p, x):
        for layer in range(len(p)):
            x = [h for _, h in run(lstm, p[f"layer_{layer}"], (np.zeros(n), np.zeros(n)), x)]
        return np.array(x)

    q = p["decoder"]
    memory = lstms(p["encoder"], p["source_embed"]["embedding"][source])
    queries = lstms(q["queries"], p["target_embed"]["embedding"][read])
    attended, all_weights = np.zeros_like(queries), []
    for head in range(q["attention"]["query"]["kernel"].shape[1]):
        of_head = [
            x @ q["attention"][name]["kernel"][:, head] + q["attention"][name]["bias"][head]
            for name, x in (("query", queries), ("key", memory), ("value", memory))
        ]
        logits = of_head[0] @ of_head[1].T / np.sqrt(of_head[0].shape[1])
        weights = np.array([softmax(row) for row in logits])
        attended += weights @ of_head[2] @ q["attention"]["out"]["kernel"][head]
        all_weights.append(weights)
    x = lstms(q["after"], queries + attended + q["attention"]["out"]["bias"])
    return dense(p["logits"]["vocabulary"], x), np.mean(all_weights, 0)


CELLS = {
    "gru": (gru, lambda n: np.zeros(n), lambda s: s),
    "lstm": (lstm, lambda n: (np.zeros(n), np.zeros(n)), lambda s: s[1]),
    "tanh": (tanh_rnn, lambda n: np.zeros(n), lambda s: s),
}


def with_residual(kind, output, inputs):
    added = {None: [], "add": inputs[-1:], "dense": inputs}[kind]
    return sum(added, output)


def britz(
    p,
    source,
    read,
    *,
    attention,
    encoder_cell,
    decoder_cell,
    encoder_residual,
    decoder_residual,
    input_transform,
    direction,
):
    """Britz et al. 2017, §4: logits [T, V] and weights [T, S], or None without attention."""
    n = p["logits"]["vocabulary"]["kernel"].shape[0]
    step, zero, output_of = CELLS[encoder_cell]

    def read_stack(q, x):
        inputs, last = [np.array(x)], []
        for layer in range(len(q)):
            states = run(step, q[f"layer_{layer}"], zero(n), inputs[-1])
            last.append(states[-1])
            outputs = np.array([output_of(s) for s in states])
            inputs.append(with_residual(encoder_residual, outputs, inputs))
        return inputs[-1], last

    x, q = p["source_embed"]["embedding"][source], p["encoder"]
    sides = []
    if direction != "backward":
        sides.append(read_stack(q["forward"] if direction == "both" else q, x))
    if direction != "forward":
        h, last = read_stack(q["backward"] if direction == "both" else q, x[::-1])
        sides.append((h[::-1], last))
    h = np.concatenate([h for h, _ in sides], 1)

    step, zero, output_of = CELLS[decoder_cell]
    q = p["decoder"]
    num_layers = sum("cell" in name or "layer" in name for name in q["stack"])
    states = [zero(n) for _ in range(num_layers)]
    if attention == "none-state":
        flat = [np.concatenate([np.ravel(s) for s in last]) for _, last in sides]
        states = list(dense(p["bridge"], np.concatenate(flat)).reshape(np.shape(states)))
    c = np.zeros(h.shape[1])
    if attention == "none-input":
        c = np.concatenate([output_of(last[-1]) for _, last in sides])
    all_logits, all_weights = [], []
    for token in read:
        x = p["target_embed"]["embedding"][token]
        if attention == "none-input":
            x = x + c @ p["to_input"]["kernel"]
        inputs = [x]
        for layer in range(num_layers):
            if attention.startswith("none"):
                of_layer = q["stack"][f"layer_{layer}"]
                cell, gates = of_layer["cell"], dense(of_layer["input"], inputs[-1])
            else:
                cell = q["stack"][f"cell_{layer}"]
                if layer > 0:
                    gates = dense(q["stack"][f"input_{layer}"], inputs[-1])
                else:
                    gates = dense(q["input"], x) + dense(q["fed"], c)
                    inputs = []
                    if input_transform:
                        inputs, gates = [gates], dense(q["gates"], gates)
            states[layer] = step(cell, states[layer], gates)
            output = output_of(states[layer])
            if inputs:
                output = with_residual(decoder_residual, output, inputs)
            inputs.append(output)
        s = inputs[-1]
        if not attention.startswith("none"):
            keys, query = dense(p["keys"], h), dense(q["query"], s)
            if attention.endswith("mul"):
                scale = len(query) ** -0.5 if attention == "scaled-mul" else 1
                logits = keys @ query * scale
            else:
                logits = np.tanh(keys + query) @ q["score"]["kernel"][0]
            weights = softmax(logits)
            c = weights @ h
            all_weights.append(weights)
        if attention != "none-state":
            s = np.tanh(dense(p["combine"], np.concatenate([s, c])))
        all_logits.append(dense(p["logits"]["vocabulary"], s))
    return np.array(all_logits), np.array(all_weights) if all_weights else None
