"""Observations of real Flux (CSV, one value a row, Julia's column-major 1-based indices) as FluxBridge returns them."""

import csv

import numpy as np

WEIGHTS = ("dWi", "dWh", "db")


def read(path, cases):
    """Return ``{(case, variant, loss_step or None): raw}`` with ``raw`` as FluxBridge would have returned it.

    ``cases`` maps names to cases; a raw of ``{"error": text}`` is what Flux raised. The outputs ``y`` stand in rows of
    their own without a loss step and are given to every run of the variant.
    """
    rows = {}
    with open(path) as file:
        lines = (line for line in file if not line.startswith("#"))
        for case, variant, step, quantity, timestep, index, value in csv.reader(lines):
            if case in cases:
                rows.setdefault((case, variant, step), {}).setdefault(quantity, []).append((timestep, index, value))
    found = {}
    for (name, variant, step), quantities in rows.items():
        if step == "":
            continue
        outputs = rows.get((name, variant, ""), {})
        raw = {key: _value(key, entries, cases[name]) for key, entries in {**outputs, **quantities}.items()}
        states = [raw.get(key) for key in ("dh0", "dstate_h")]
        raw["batch_summed"] = any(state is not None and state.ndim == 2 for state in states)
        found[name, variant, None if step == "all" else int(step) - 1] = raw
    return found


def _value(key, entries, case):
    if key == "error":
        return entries[0][2]
    if entries[0][2] == "nothing":
        return [None] if key in WEIGHTS else None
    batch, hidden, rows = case.batch, case.hidden_size, case.gates * case.hidden_size
    if key in ("dx", "y"):
        size = case.input_size if key == "dx" else hidden
        result = np.zeros((case.seq_len, batch, size))
        for step, index, value in entries:
            result[int(step) - 1].ravel()[int(index) - 1] = float(value)  # (size, batch) column-major
        return result
    flat = np.array([float(value) for _, _, value in sorted(entries, key=lambda entry: int(entry[1]))])
    if key == "dWi":
        return [flat.reshape(case.input_size, rows).T.copy()]
    if key == "dWh":
        return [flat.reshape(hidden, rows).T.copy()]
    if key == "db":
        return [flat]
    if flat.size == hidden and batch > 1:
        return flat.reshape(1, hidden)  # summed over the batch
    return flat.reshape(1, batch, hidden)
