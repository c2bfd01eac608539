"""Oracle: images moved and mirrored by hand, pixel by pixel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import eqprop
from eqprop.augmentation import Augmentation
from eqprop.runs import UserError
from eqprop.runs.recipe import load
from eqprop.splits import Dataset, Normalisation, Split


def split_of(shape: tuple[int, ...], n: int = 7, dtype: torch.dtype = torch.uint8) -> Split:
    source = torch.Generator().manual_seed(1)
    images = torch.randint(1, 256, (n, *shape), generator=source).to(dtype)
    return Split(images, torch.arange(n) % 3, 3)


def by_hand(image: torch.Tensor, down: int, right: int, flip: bool) -> torch.Tensor:
    *_, height, width = image.shape
    moved = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            from_row, from_column = row - down, column - right
            if 0 <= from_row < height and 0 <= from_column < width:
                from_column = width - 1 - from_column if flip else from_column
                moved[..., row, column] = image[..., from_row, from_column]
    return moved


@pytest.mark.parametrize("shape", [(5, 6), (1, 5, 6), (3, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_every_image_moves_as_drawn(shape, dtype):
    split = split_of(shape, dtype=dtype)
    drawn = Augmentation(shift=2, flip=True).draw(split, [3, 8], epoch=4)
    index = torch.tensor([[0, 6, 2, 2], [5, 1, 0, 3]])
    x, y = drawn.batch(index, torch.float64)
    for member in range(2):
        for b, i in enumerate(index[member].tolist()):
            down, right = drawn.shifts[member, i].tolist()
            image = by_hand(split.images[i], down, right, bool(drawn.flips[member, i])).double()
            wanted = image / 255 if dtype == torch.uint8 else image
            torch.testing.assert_close(x[member, b], wanted, rtol=0, atol=0)
    assert torch.equal(y.argmax(-1), split.labels[index].long())


def test_shifts_are_uniform_and_half_of_the_images_are_mirrored():
    split = split_of((2, 2), n=20_000)
    drawn = Augmentation(shift=1, flip=True).draw(split, [0], epoch=0)
    share = torch.stack([(drawn.shifts == step).double().mean() for step in (-1, 0, 1)])
    assert (share - 1 / 3).abs().max() < 0.02  # five standard deviations
    assert abs(drawn.flips.double().mean() - 0.5) < 0.02
    assert not Augmentation(shift=1).draw(split, [0], epoch=0).flips.any()


def test_what_is_drawn_depends_on_seed_and_epoch_alone():
    split, augmentation = split_of((6, 6), n=50), Augmentation(shift=2, flip=True)
    both, alone = augmentation.draw(split, [3, 8], 4), augmentation.draw(split, [8], 4)
    assert torch.equal(both.shifts[1], alone.shifts[0])
    assert torch.equal(both.flips[1], alone.flips[0])
    for other in (augmentation.draw(split, [9], 4), augmentation.draw(split, [8], 5)):
        assert not torch.equal(other.shifts, alone.shifts)


@pytest.mark.parametrize("flip", [False, True])
def test_with_edge_the_border_repeats_the_edge(flip):
    split = split_of((3, 5, 6), n=30)
    drawn = Augmentation(shift=3, flip=flip, edge=True).draw(split, [1], 0)
    x, _ = drawn.batch(torch.arange(30)[None], torch.float64)
    for i, image in enumerate(split.images.double() / 255):
        image = image.flip(-1) if drawn.flips[0, i] else image
        padded = torch.nn.functional.pad(image, (3, 3, 3, 3), mode="replicate")
        down, right = drawn.shifts[0, i].tolist()
        wanted = padded[:, 3 - down : 8 - down, 3 - right : 9 - right]
        torch.testing.assert_close(x[0, i], wanted, rtol=0, atol=0)


def test_the_border_is_zero_before_normalisation():
    by = Normalisation((0.5,), (0.25,))
    split = Split(torch.full((40, 1, 3, 3), 255, dtype=torch.uint8), torch.zeros(40).long(), 1, by)
    x, _ = Augmentation(shift=1).draw(split, [0], 0).batch(torch.arange(40)[None], torch.float64)
    assert set(x.unique().tolist()) == {-2.0, 2.0}


def test_without_augmentation_a_split_stays_itself():
    split = split_of((4, 4))
    assert Augmentation().draw(split, [0], 0) is split


RECIPE = {
    "input": [1, 8, 8],
    "layers": [{"conv": 2, "kernel": 3, "padding": 1, "pool": 2}, 3],
    "learning_rates": [0.1, 0.1],
    "batch": 4,
    "free_steps": 4,
    "nudged_steps": 2,
    "update.schedule": None,
    "data.shift": 1,
    "data.flip": True,
}


def few() -> Dataset:
    return Dataset("few", split_of((8, 8), n=18), split_of((8, 8), n=6))


def weights(run: eqprop.Run) -> dict[str, torch.Tensor]:
    return run.net.state_dict()


def train(out: Path | None, epochs: int, seeds: int = 2, **more: object) -> eqprop.Run:
    fields = RECIPE | more
    return eqprop.train("mnist-conv", few(), out, epochs, seeds, progress=False, overrides=fields)


def test_a_run_that_resumes_sees_the_same_images(tmp_path):
    whole = train(tmp_path / "whole", 3)
    train(tmp_path / "parts", 1)
    resumed = eqprop.train(
        "mnist-conv", few(), tmp_path / "parts", 3, 2, progress=False, overrides=RECIPE, resume=True
    )
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name
    plain = train(None, 3, **{"data.shift": 0, "data.flip": False})
    assert not torch.equal(weights(plain)["synapses.0.weight"], weights(whole)["synapses.0.weight"])


def test_a_member_sees_what_it_would_see_alone():
    both, alone = train(None, 2), train(None, 2, seeds=1)
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(both)[name][:1], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("field", ["data.shift", "data.flip"])
def test_flat_images_are_refused(field):
    with pytest.raises(UserError, match=r"shift and flip need images with a height and a width"):
        load("ep-1h", {field: 1 if field == "data.shift" else True})
