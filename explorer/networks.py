"""Train the networks of the page, and write what it holds to content.json.

python explorer/networks.py            about five minutes on two cores; then: make explorer
"""

from __future__ import annotations

from pathlib import Path

import eqprop
from eqprop.explorer.content import Record, pack_digits, pack_network
from eqprop.explorer.page import dumps, settings_of

TRAIN_DIGITS = 400
ALTERNATING = (340, 447, 740, 874, 938, 1051, 1270)  # test digits on which c-vf never settles
TEST_DIGITS = (*range(100), *ALTERNATING)
HERE = Path(__file__).parent


def trained(name: str, title: str, recipe: str, epochs: int, **overrides: object) -> Record:
    """One network, with weights of one byte each."""
    run = eqprop.train(recipe, epochs=epochs, seeds=1, overrides=overrides)
    assert run.net is not None
    error = run.metrics[-1]["test_error"][0]
    python = f"eqprop.explorer.network({name!r})"
    settings = settings_of(run.recipe)
    print(f"{name}: test error {error:.2f} % after {epochs} epochs")
    return pack_network(run.net.member(0), name, title, python, settings, small=True)


if __name__ == "__main__":
    networks = [
        trained("c-ep", "trained with C-EP, 784-512-10", "c-ep-1h", 50),
        trained(
            "c-vf",
            "trained with C-VF, unstable, 784-128-10",
            "c-vf-1h",
            42,
            **{"seed": 1, "rule.update_slope": "none", "network.layers": [784, 128, 10]},
        ),
    ]
    digits = pack_digits(eqprop.data.load("mnist"), TRAIN_DIGITS, TEST_DIGITS)
    text = dumps({"networks": networks, "digits": digits})
    (HERE / "content.json").write_text(text + "\n", "utf-8")
    print(f"{HERE / 'content.json'}: {len(text) / 1e6:.2f} MB")
