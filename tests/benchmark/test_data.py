"""The data layer: checks against the manifest, images on the device, readers, opening."""

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest
import torch

from classfair.augment import parameter_table
from classfair.data import DeviceImages, Reader, open_data
from classfair.recipe import Augmentation, Data
from classfair_registry.errors import DataBad, UsageError
from classfair_registry.settings import NoSettings, setting
from classfair_registry.specs import DatasetSpec, Manifest, Splits

CROP = Augmentation(name="crop_flip", pad=4)
LABELS = np.repeat(np.arange(3), (8, 20, 4))[np.random.default_rng(0).permutation(32)]


@dataclasses.dataclass
class Made:
    """A split whose images are random but fixed."""

    labels: np.ndarray
    names: Any = None
    shape: tuple = (5, 6, 3)
    dtype: Any = np.uint8

    def images(self, indices):
        rng = np.random.default_rng(1)
        return rng.integers(0, 256, (len(self.labels), *self.shape)).astype(self.dtype)[indices]


def made_spec(expected=None, settings=NoSettings, **splits):
    """A data set of 3 classes that opens as ``splits``; its manifest expects their sizes."""
    counts = {name: len(split.labels) for name, split in splits.items()}
    manifest = Manifest(
        classes=("a", "b", "c"),
        counts=expected or counts,
        shape=(3, 5, 6),
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
        licence="none",
        citation="none",
        sources=("none",),
    )
    opened = []

    def open_made(root, chosen):
        opened.append(chosen)
        return Splits(splits, "f" * 64)

    spec = DatasetSpec("made", "Made", open_made, lambda r, s: [], manifest, "Made up", settings)
    return spec, opened


def small(channels=3, height=5, width=6, n=7):
    """Return random images and the same on the device."""
    images = np.random.default_rng(2).integers(0, 256, (n, height, width, channels), np.uint8)
    mean, std = (0.25, 0.5, 0.4)[:channels], (0.3, 0.2, 0.5)[:channels]
    return images, DeviceImages(images, np.arange(n) % 3, mean, std), mean, std


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# -- the manifest ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ({"train": 2, "test": 32}, "test and train seem to be swapped"),
        ({"train": 30, "test": 4}, "the same images cut in another way"),
        ({"train": 33, "test": 2}, "files are missing"),
        ({"train": 32, "test": 2, "val": 9}, "found train 32, test 2; there must be .*val 9"),
    ],
)
def test_a_swapped_or_foreign_split_is_refused(expected, says):
    spec, _ = made_spec(expected, train=Made(LABELS), test=Made(np.array([0, 1])))
    with pytest.raises(DataBad, match=f"made: .*{says}"):
        open_data(spec, Data(name="made"), None)


@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_of_every_split_are_checked_before_images_are_read(split):
    splits = {"train": Made(LABELS), "test": Made(LABELS[:4]), split: Made(LABELS + 1)}
    for made in splits.values():
        made.images = None
    spec, _ = made_spec(**splits)
    with pytest.raises(DataBad, match=f"made, {split}: .*count from 1"):
        open_data(spec, Data(name="made"), None)


# -- images on the device --------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_plain_images_are_normalised_and_channels_last(channels):
    images, device, mean, std = small(channels)
    index = torch.tensor([4, 0, 4])
    found = device.plain(index)
    expected = (images[index.numpy()] / 255 - np.array(mean)) / np.array(std)
    assert found.dtype == torch.float32
    assert found.shape == (3, channels, 5, 6)
    assert found.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, rtol=0, atol=1e-6)


def slow_crop_flip(image, row, pad, mean, std):
    """Augment one image pixel by pixel."""
    height, width, channels = image.shape
    padded = np.zeros((height + 2 * pad, width + 2 * pad, channels), np.uint8)
    padded[pad : pad + height, pad : pad + width] = image
    top, left, mirrored = row
    out = np.empty((channels, height, width))
    for y in range(height):
        for x in range(width):
            column = width - 1 - x if mirrored else x
            for c in range(channels):
                pixel = padded[pad + top + y, pad + left + column, c]
                out[c, y, x] = (pixel / 255 - mean[c]) / std[c]
    return out


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("pad", [0, 2, 9])
@pytest.mark.parametrize("flip", [True, False])
def test_augmentation_equals_a_loop_over_pixels(channels, pad, flip):
    images, device, mean, std = small(channels)
    index = torch.tensor([6, 0, 0, 3, 5, 1, 6, 2, 4, 4])
    augmentation = Augmentation(name="crop_flip", pad=pad, flip=flip)
    rows = parameter_table(augmentation, len(index), seeded())
    assert pad == 0 or len(np.unique(rows.numpy(), axis=0)) > 1
    found = device.augmented(index, rows)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for image, i, row in zip(found, index, rows.tolist(), strict=True):
        expected = slow_crop_flip(images[i], row, pad, mean, std)
        np.testing.assert_allclose(image.numpy(), expected, rtol=0, atol=1e-6)


def test_without_augmentation_a_table_has_no_columns_and_images_are_plain():
    _, device, _, _ = small()
    rows = parameter_table(Augmentation(), 4, seeded())
    index = torch.arange(4)
    assert rows.shape == (4, 0)
    assert torch.equal(device.augmented(index, rows), device.plain(index))


def test_a_table_has_the_numbers_that_the_augmentation_names():
    rows = parameter_table(CROP, 2000, seeded())
    assert rows.dtype == torch.int16
    assert rows.min(0).values.tolist() == [-4, -4, 0]
    assert rows.max(0).values.tolist() == [4, 4, 1]
    assert abs(rows[:, 2].float().mean() - 0.5) < 0.05
    unflipped = parameter_table(CROP.model_copy(update={"flip": False}), 2000, seeded())
    assert torch.equal(unflipped[:, :2], rows[:, :2])
    assert not unflipped[:, 2].any()


def test_repeats_of_an_image_and_views_differ_and_batches_do_not_matter():
    _, device, _, _ = small()
    order = torch.zeros(12, dtype=torch.int64)
    one, two = (parameter_table(CROP, 12, seeded(view)) for view in (0, 1))
    whole = device.augmented(order, one)
    assert len(whole.flatten(1).unique(dim=0)) > 6
    assert not torch.equal(whole, device.augmented(order, two))
    parts = [device.augmented(order[s : s + 5], one[s : s + 5]) for s in (0, 5, 10)]
    assert torch.equal(torch.cat(parts), whole)


def test_images_that_cannot_be_written_to_are_fine():
    images = np.frombuffer(bytes(range(90)), np.uint8).reshape(1, 5, 6, 3)
    found = DeviceImages(images, np.array([0]), (0, 0, 0), (1 / 255,) * 3).plain(torch.tensor([0]))
    assert found.permute(0, 2, 3, 1).flatten().round().tolist() == list(range(90))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_sees_the_same_images():
    images, here, mean, std = small()
    there = DeviceImages(images, np.arange(7) % 3, mean, std, "cuda")
    index = torch.tensor([6, 0, 0, 3])
    rows = parameter_table(CROP, 4, seeded())
    expected = here.augmented(index, rows)
    torch.testing.assert_close(there.augmented(index, rows).cpu(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(there.plain(index).cpu(), here.plain(index), rtol=0, atol=1e-6)


# -- readers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7, 9, 12, 13, 16, 17])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_readers_share_a_split_in_order_and_make_equally_many_batches(n, size):
    _, device, _, _ = small(n=n)
    shares = [list(Reader(device, 4, rank=r, size=size).batches()) for r in range(size)]
    index = torch.cat([batch.index for share in shares for batch in share])
    assert index.tolist() == list(range(n))
    lengths = [[len(batch.labels) for batch in share] for share in shares]
    if n >= size:
        assert len({len(share) for share in lengths}) == 1
        assert max(map(sum, lengths)) - min(map(sum, lengths)) <= 1
    assert max(map(max, filter(None, lengths))) <= 5
    assert len(lengths[0]) == 1 or lengths[0][-1] > 1


def test_a_batch_holds_images_labels_positions_and_no_progress():
    _, device, _, _ = small()
    reader = Reader(device, 3, subset=torch.tensor([1, 4, 5, 6]))
    batches = list(reader.batches())
    assert [batch.index.tolist() for batch in batches] == [[1, 4, 5, 6]]  # no last batch of one
    (batch,) = batches
    assert torch.equal(batch.images, device.plain(batch.index))
    assert torch.equal(batch.labels, device.labels[batch.index])
    assert torch.equal(reader.labels, batch.labels)
    assert batch.progress.shape == ()
    assert batch.progress == 0
    assert not batch.images.requires_grad


def test_the_train_transform_does_not_depend_on_batches_or_processes():
    _, device, _, _ = small(n=11)

    def images(batch_size, size):
        readers = [
            Reader(
                device,
                batch_size,
                transform="train",
                augmentation=CROP,
                generator=seeded(),
                rank=rank,
                size=size,
            )
            for rank in range(size)
        ]
        return torch.cat([batch.images for reader in readers for batch in reader.batches()])

    whole = images(11, 1)
    assert torch.equal(images(3, 1), whole)
    assert torch.equal(images(2, 3), whole)
    assert not torch.equal(whole, device.plain(torch.arange(11)))


def test_a_train_reader_draws_anew_each_time_and_an_eval_reader_never():
    _, device, _, _ = small()
    generator, index = seeded(), torch.tensor([2, 2, 5])
    before = generator.get_state()
    plain = Reader(device, 3, augmentation=CROP, generator=generator)
    assert torch.equal(plain.images(index), device.plain(index))
    assert torch.equal(generator.get_state(), before)
    train = Reader(device, 3, transform="train", augmentation=CROP, generator=generator)
    assert not torch.equal(train.images(index), train.images(index))


def test_the_train_transform_needs_a_generator():
    _, device, _, _ = small()
    with pytest.raises(ValueError, match="generator"):
        Reader(device, 3, transform="train", augmentation=CROP)


# -- opening ---------------------------------------------------------------------------------------


def test_opened_data_are_cut_and_keep_their_names():
    names = [f"{i:02}.png" for i in range(32)]
    spec, _ = made_spec(train=Made(LABELS, names), test=Made(LABELS[:9]))
    opened = open_data(spec, Data(name="made", fraction=0.5, validation=0.25), None)
    assert opened.val is not None
    assert opened.class_names == ("a", "b", "c")
    assert opened.shape == (3, 5, 6)
    assert opened.fingerprint == "f" * 64
    assert opened.counts == (3, 7, 1)
    assert opened.val.counts == (1, 3, 1)
    assert (len(opened.train), len(opened.val), len(opened.test)) == (11, 5, 9)
    assert opened.train.names == tuple(names[i] for i in opened.train.positions)
    assert opened.test.names is None
    assert opened.train.images.labels.tolist() == LABELS[opened.train.positions].tolist()
    whole = DeviceImages(Made(LABELS).images(slice(None)), LABELS, spec.manifest.mean, (1, 1, 1))
    assert whole.shape == opened.shape
    found = opened.val.images.plain(torch.arange(5)) * torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)
    expected = whole.plain(torch.from_numpy(opened.val.positions))
    torch.testing.assert_close(found, expected)


def test_a_data_set_s_own_validation_split_is_used_unless_one_is_cut():
    splits = {"train": Made(LABELS), "test": Made(LABELS[:9]), "val": Made(LABELS[:7])}
    spec, _ = made_spec(**splits)
    assert len(open_data(spec, Data(name="made"), None).part("val")) == 7
    assert len(open_data(spec, Data(name="made", validation=0.25), None).part("val")) == 8


def test_a_recipe_without_validation_has_no_such_split():
    spec, _ = made_spec(train=Made(LABELS), test=Made(LABELS[:9]))
    opened = open_data(spec, Data(name="made"), None)
    assert opened.val is None
    assert opened.part("train") is opened.train
    with pytest.raises(UsageError, match=r"'val'; set data\.validation above 0"):
        opened.part("val")


@pytest.mark.parametrize("wrong", [{"shape": (5, 5, 3)}, {"shape": (5, 6, 1)}, {"dtype": np.int64}])
def test_images_of_another_shape_or_type_are_refused(wrong):
    spec, _ = made_spec(train=Made(LABELS), test=Made(LABELS[:9], **wrong))
    with pytest.raises(DataBad, match=r"made, test: images are .* not uint8 \(9, 5, 6, 3\)"):
        open_data(spec, Data(name="made"), None)


@dataclasses.dataclass(frozen=True)
class WithSplit:
    split: Literal["official", "zhou"] = setting("official", "which", source="test")
    size: int = setting(3, "how large", source="test", minimum=1)


def test_the_recipe_s_split_and_settings_reach_the_data_set():
    spec, opened = made_spec(None, WithSplit, train=Made(LABELS), test=Made(LABELS[:9]))
    open_data(spec, Data(name="made", split="zhou", settings={"size": 5}), None)
    open_data(spec, Data(name="made", split="zhou", settings={"split": "official"}), None)
    assert opened == [WithSplit("zhou", 5), WithSplit("zhou", 3)]


@pytest.mark.parametrize(
    ("settings_type", "data", "says"),
    [
        (NoSettings, {"split": "zhou"}, "no split 'zhou'; known: official"),
        (WithSplit, {"split": "zou"}, "'zou' is not one of official, zhou"),
        (WithSplit, {"settings": {"split": "zhou"}}, "give it once, as data.split"),
        (WithSplit, {"settings": {"size": 0}}, "size: 0 is outside"),
        (WithSplit, {"settings": {"sise": 2}}, "no setting 'sise'; did you mean size?"),
    ],
)
def test_an_unknown_split_or_setting_is_a_usage_error(settings_type, data, says):
    spec, opened = made_spec(None, settings_type, train=Made(LABELS), test=Made(LABELS[:9]))
    with pytest.raises(UsageError, match=f"data \\(made\\).*{says}"):
        open_data(spec, Data(name="made", **data), None)
    assert not opened
