"""The saved tables of a large run, made up: in every sixth case one backend drops the recurrent term."""

import json

import numpy as np
import pandas as pd

QUANTITIES = ("y", "dx", "dweight_ih", "dweight_hh", "dbias_ih", "dbias_hh", "dh0")
FAULT = "recurrent-term-dropped"


def write(folder, cases=100, backends=6, steps=20):
    """Write what the report reads of a run with Jacobian maps; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {name: [] for name in ("gradients", "timesteps", "summary", "jacobian", "findings")}
    for number in range(cases):
        for index in range(backends):
            key = {"case": f"case-{number}", "backend": f"framework-1.0/variant-{index}"}
            bad = number % 6 == 0 and index == 3
            tables["jacobian"].append(jacobian(key, number, steps, bad))
            for quantity in QUANTITIES:
                rows = pd.DataFrame(key | summary(quantity, steps, bad), index=[0])
                tables["summary"].append(rows)
            for quantity in ("y", "dx"):
                rows = gradients(key | {"quantity": quantity}, number + index / 10, steps, bad and quantity == "dx")
                tables["gradients"].append(rows)
                tables["timesteps"].append(rows[(rows["batch"] == 0) & (rows["row"] == 0)])
            if bad:
                tables["findings"].append(pd.DataFrame(key | FINDING | {"steps": steps}, index=[0]))
    for name, parts in tables.items():
        pd.concat(parts).to_csv(folder / f"{name}.csv", index=False)
    (folder / "run.json").write_text(json.dumps({"kind": "compare", "command": ["gradbridge", "compare"]}))
    return folder


FINDING = {
    "quantities": "dx", "fault": FAULT, "fault_residual": 1e-8, "closest": "", "workarounds": "request all",
    "others": "", "clause": "the recurrent term is dropped",
}  # fmt: skip


def summary(quantity, steps, bad):
    wrong = bad and quantity == "dx"
    return {
        "quantity": quantity, "verdict": "disagrees" if wrong else "agrees", "max_abs_err": 1e-3 if wrong else 1e-8,
        "max_rel_err": 1e-2, "worst_seq_len": steps, "worst_timestep": 3, "fault": FAULT if wrong else "",
        "reason": "differs by more than rounding" if wrong else "",
    }  # fmt: skip


def gradients(key, seed, steps, wrong, batch=2, size=4):
    step, sequence, row = (axis.ravel() for axis in np.indices((steps, batch, size)))
    reference = np.random.default_rng(int(seed)).normal(size=step.size)
    error = np.random.default_rng(int(10 * seed)).uniform(0, 1e-8, step.size)
    error[wrong & (step < steps - 1)] = 1e-3
    return pd.DataFrame(
        key | {
            "seq_len": steps, "loss_step": None, "timestep": step, "batch": sequence, "row": row,
            "value": reference + error, "reference": reference, "abs_err": error,
            "tolerance": 1e-7 * (1 + reference**2), "verdict": np.where(error > 1e-4, "disagrees", "agrees"),
        }
    )  # fmt: skip


def jacobian(key, number, steps, bad):
    loss, time = (axis.ravel() for axis in np.indices((steps, steps)))
    reference = np.where(time <= loss, np.exp((time - loss) / 3 - number / 50), 0.0)
    value = np.where(time == loss, reference, 0.0) if bad else reference
    return pd.DataFrame(
        key | {
            "loss_step": loss, "timestep": time, "batch": 0, "row": 0, "value": value, "reference": reference,
            "abs_err": abs(value - reference), "verdict": np.where(value == reference, "agrees", "disagrees"),
        }
    )  # fmt: skip
