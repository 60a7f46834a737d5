"""The ways to read images: equal to the last bit, whatever the batch, the workers and the place."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import trees
from classfair import image_store, images
from classfair.augment import parameter_table
from classfair.data import DeviceImages, Reader, open_data
from classfair.geometry import COLUMNS
from classfair.image_store import StoredPart, on_device
from classfair.images import Look, ResidentImages, StreamedImages
from classfair.recipe import Augmentation, Data, Evaluation
from classfair_registry.errors import DataBad, UsageError
from small_datasets import SMALL

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
CENTRE = Evaluation(name="centre", resize=20, size=16, interpolation="bicubic")
CROPS = Augmentation(name="random_resized_crop")
AUGMENTATIONS = (
    Augmentation(name="none"),
    Augmentation(name="crop_flip", pad=3),
    CROPS,
    Augmentation(name="none", policy="autoaugment_imagenet"),
    Augmentation(name="crop_flip", policy="randaugment"),
    Augmentation(name="random_resized_crop", policy="autoaugment_cifar10", flip=False),
)
NAMES = [f"{a.name}+{a.policy}" for a in AUGMENTATIONS]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int = 6) -> list[np.ndarray]:
    return [np.asarray(trees.picture(i, i)) for i in range(n)]


def flat(found: list[np.ndarray]) -> StoredPart:
    heights, widths = (np.array([image.shape[axis] for image in found]) for axis in (0, 1))
    area = heights * widths
    pixels = np.concatenate([image.reshape(-1, image.shape[2]) for image in found])
    return StoredPart(pixels, np.cumsum(area) - area, heights, widths)


def both(look: Look, found: list[np.ndarray]) -> tuple[images.Images, images.Images]:
    """Return the same images streamed and resident."""
    labels, part = np.arange(len(found)) % 3, flat(found)
    channels = found[0].shape[2]
    streamed = StreamedImages(lambda i: found[i], labels, channels, (0, 0), look)
    everything = on_device(part, np.arange(len(found)), "cpu")
    return streamed, ResidentImages(everything, labels, (0, 0), look)


def plainly(image: np.ndarray, look: Look, row: list[float]) -> np.ndarray:
    """Return one image [C, H, W] as a loop over images with Pillow would make it."""
    size = (look.evaluation.size, look.evaluation.size)
    rows, columns = look.spans(image.shape[:2], row, size)
    crop = bool(row) and look.augmentation.name == "random_resized_crop"
    how = (look.augmentation if crop else look.evaluation).interpolation
    box = (columns.start, rows.start, columns.start + columns.length, rows.start + rows.length)
    method = Image.Resampling[how.upper()]
    picture = Image.fromarray(image).crop(box)
    picture = picture.resize((columns.resized, picture.height), method)
    picture = picture.resize((columns.resized, rows.resized), method)
    top, left = rows.first, columns.first
    picture = picture.crop((left, top, left + size[1], top + size[0]))
    if row and row[-1] > 0 and crop:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    values = (np.asarray(picture) / 255 - np.array(MEAN)) / np.array(STD)
    return values.transpose(2, 0, 1)


# -- what an image becomes -------------------------------------------------------------------------


@pytest.mark.parametrize("augmentation", [Augmentation(name="none"), CROPS], ids=str)
def test_images_are_what_a_loop_with_pillow_gives(augmentation):
    look, found = Look(MEAN, STD, CENTRE, augmentation), pictures()
    index = torch.tensor([5, 0, 3, 3, 1])
    rows = parameter_table(augmentation, len(index), seeded())
    wanted = [plainly(found[i], look, row) for i, row in zip(index, rows.tolist(), strict=True)]
    for made in both(look, found):
        pixels = made.augmented(index, rows)
        assert pixels.shape == (5, 3, 16, 16)
        assert pixels.dtype == torch.float32
        assert pixels.is_contiguous(memory_format=torch.channels_last)
        np.testing.assert_allclose(pixels.numpy(), np.stack(wanted), rtol=0, atol=1e-6)


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=NAMES)
@pytest.mark.parametrize("channels", [1, 3])
def test_resident_and_streamed_images_are_equal_to_the_last_bit(augmentation, channels):
    found = [image[..., :channels] for image in pictures()]
    look = Look(MEAN[:channels], STD[:channels], CENTRE, augmentation)
    streamed, resident = both(look, found)
    index = torch.tensor([5, 0, 3, 3, 1, 2, 2, 4])
    rows = parameter_table(augmentation, len(index), seeded())
    assert torch.equal(streamed.augmented(index, rows), resident.augmented(index, rows))
    assert torch.equal(streamed.plain(index), resident.plain(index))
    assert rows.shape[1] == 0 or not torch.equal(
        streamed.augmented(index, rows), streamed.plain(index)
    )


@pytest.mark.parametrize(
    "augmentation", [a for a in AUGMENTATIONS if a.name != "random_resized_crop"], ids=str
)
def test_small_images_on_the_device_are_equal_to_streamed_ones(augmentation):
    found = [np.asarray(trees.picture(i, i, (14, 12))) for i in range(6)]
    look, labels = Look(MEAN, STD, augmentation=augmentation), np.arange(6) % 3
    device = DeviceImages(np.stack(found), labels, MEAN, STD, augmentation=augmentation)
    streamed = StreamedImages(lambda i: found[i], labels, 3, (12, 14), look)
    index = torch.tensor([5, 0, 3, 3, 1])
    rows = parameter_table(augmentation, len(index), seeded())
    assert device.shape == streamed.shape == (3, 12, 14)
    assert torch.equal(device.augmented(index, rows), streamed.augmented(index, rows))
    assert torch.equal(device.plain(index), streamed.plain(index))


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=NAMES)
def test_neither_batches_nor_workers_nor_what_is_prepared_change_an_image(
    augmentation, monkeypatch
):
    look, found = Look(MEAN, STD, CENTRE, augmentation), pictures()
    order = torch.tensor([0, 5, 5, 2, 1, 4, 0, 3, 2, 5, 1])
    table = parameter_table(augmentation, len(order), seeded())
    whole = both(look, found)[0].augmented(order, table)
    for threads, ahead, size in (("1", 0, 4), ("2", 1, 3), ("3", 9, 1)):
        monkeypatch.setenv("CLASSFAIR_WORKERS", threads)
        images._pool.cache_clear()
        for made in both(look, found):
            made.ahead = ahead
            spans = [slice(n, n + size) for n in range(0, len(order), size)]
            parts = list(made.read((order[s], table[s]) for s in spans))
            assert [len(part) for part in parts] == [len(order[s]) for s in spans]
            assert torch.equal(torch.cat(parts), whole)
    images._pool.cache_clear()


def test_repeats_of_an_image_and_views_differ():
    streamed, _ = both(Look(MEAN, STD, CENTRE, CROPS), pictures())
    order = torch.zeros(12, dtype=torch.int64)
    one, two = (parameter_table(CROPS, 12, seeded(view)) for view in (0, 1))
    whole = streamed.augmented(order, one)
    assert len(whole.flatten(1).unique(dim=0)) > 8
    assert not torch.equal(whole, streamed.augmented(order, two))


def test_processes_that_share_a_split_see_the_same_images():
    streamed, _ = both(Look(MEAN, STD, CENTRE, CROPS), pictures())

    def read(batch_size: int, size: int) -> torch.Tensor:
        shares = [
            Reader(
                streamed,
                batch_size,
                transform="train",
                augmentation=CROPS,
                generator=seeded(),
                rank=rank,
                size=size,
            )
            for rank in range(size)
        ]
        return torch.cat([batch.images for share in shares for batch in share.batches()])

    assert torch.equal(read(2, 1), read(6, 1))
    assert torch.equal(read(2, 3), read(6, 1))


def test_tables_of_crops_have_the_columns_that_they_say():
    table = parameter_table(CROPS, 3000, seeded())
    assert table.shape == (3000, COLUMNS)
    assert set(table[:, -1].tolist()) == {0.0, 1.0}
    assert abs(table[:, -1].mean() - 0.5) < 0.05
    still = parameter_table(CROPS.model_copy(update={"flip": False}), 3000, seeded())
    assert torch.equal(still[:, :-1], table[:, :-1])
    assert not still[:, -1].any()
    with_policy = Augmentation(name="crop_flip", pad=2, policy="randaugment")
    alone = parameter_table(Augmentation(name="crop_flip", pad=2), 50, seeded())
    assert torch.equal(parameter_table(with_policy, 50, seeded())[:, :3], alone.float())


# -- reading ahead ---------------------------------------------------------------------------------


def test_batches_are_prepared_ahead_and_no_further():
    seen: list[int] = []
    lock, found = threading.Lock(), pictures()

    def source(i: int) -> np.ndarray:
        with lock:
            seen.append(i)
        return found[i]

    streamed = StreamedImages(
        source, np.zeros(6, int), 3, (0, 0), Look(MEAN, STD, CENTRE, Augmentation())
    )
    streamed.ahead = 2
    asked: list[int] = []

    def requests() -> Any:
        for n in range(6):
            asked.append(n)
            yield torch.tensor([n]), torch.empty((1, 0))

    reading = streamed.read(requests())
    next(reading)
    assert asked == [0, 1, 2]
    reading.close()
    assert set(seen) <= {0, 1, 2}


def test_a_file_that_cannot_be_read_ends_the_run_with_its_name(tmp_path):
    spec, root = SMALL["oxford_pets"], tmp_path
    folder = trees.pets(root)
    opened = open_data(spec, Data(name="oxford_pets"), root, evaluation=CENTRE)
    name = opened.train.names[4]
    path = folder / "images" / name
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataBad, match=rf"{name}: cannot be decoded: .*truncated"):
        list(opened.train.images.read([(torch.arange(12), torch.empty((12, 0)))]))


# -- opening data sets of files --------------------------------------------------------------------


@pytest.fixture
def pets(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CLASSFAIR_CACHE", str(tmp_path / "cache"))
    trees.pets(tmp_path / "root")
    return tmp_path / "root"


def opened(root: Path, augmentation: Augmentation = CROPS, **data: Any):
    settings = Data(name="oxford_pets", **data)
    evaluation = CENTRE
    return open_data(
        SMALL["oxford_pets"], settings, root, evaluation=evaluation, augmentation=augmentation
    )


def read_all(part, augmentation: Augmentation = CROPS) -> torch.Tensor:
    order = torch.arange(len(part)).flip(0)
    rows = parameter_table(augmentation, len(order), seeded())
    return torch.cat([part.images.plain(order), part.images.augmented(order, rows)])


def test_a_data_set_of_files_is_opened_cut_and_named(pets):
    found = opened(pets, validation=0.4)
    assert found.shape == (3, 16, 16)
    assert (len(found.train), len(found.val), len(found.test)) == (8, 4, 8)
    assert found.counts == (2, 2, 2, 2)
    held = {*found.train.names, *found.val.names}
    assert len(held) == 12
    assert not held & set(found.test.names)
    colours = found.test.images.plain(torch.arange(8)).mean((2, 3)) * torch.tensor(STD)
    assert colours.shape == (8, 3)
    assert found.fingerprint == opened(pets).fingerprint


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=NAMES)
def test_a_store_changes_no_number(pets, augmentation):
    before = opened(pets, augmentation, short_side=20, validation=0.4)
    decoded = [read_all(p, augmentation) for p in (before.train, before.val, before.test)]
    splits = SMALL["oxford_pets"].open(pets, _official())
    folder = image_store.build("oxford_pets", splits, pets, 20)
    after = opened(pets, augmentation, short_side=20, validation=0.4)
    mapped = [read_all(p, augmentation) for p in (after.train, after.val, after.test)]
    assert all(torch.equal(a, b) for a, b in zip(decoded, mapped, strict=True))
    for path in (pets / "oxford-iiit-pet" / "images").iterdir():
        path.touch()  # Reading on shows that the store is read, and not the files.
        path.write_bytes(b"")
    assert torch.equal(read_all(after.train, augmentation), decoded[0])
    assert folder.parent == pets / image_store.FOLDER


def _official() -> Any:
    from classfair.stamps import dataset_settings

    return dataset_settings(SMALL["oxford_pets"], Data(name="oxford_pets"))


def test_a_resident_store_is_equal_to_a_mapped_one(pets, monkeypatch):
    splits = SMALL["oxford_pets"].open(pets, _official())
    image_store.build("oxford_pets", splits, pets, 20)
    mapped = opened(pets, short_side=20)
    monkeypatch.setattr(image_store, "_fits", lambda device, size: True)
    resident = opened(pets, short_side=20)
    assert isinstance(mapped.train.images, StreamedImages)
    assert isinstance(resident.train.images, ResidentImages)
    assert torch.equal(read_all(mapped.train), read_all(resident.train))


def test_images_of_one_size_can_be_enlarged_for_a_network(monkeypatch):
    from classfair_plugins.datasets import digits

    (spec,) = digits.classfair_datasets()
    data = Data(name="digits", fraction=0.02)
    evaluation = Evaluation(name="centre", resize=12, size=10)
    streamed = open_data(spec, data, None, evaluation=evaluation, augmentation=CROPS)
    monkeypatch.setattr(image_store, "_fits", lambda device, size: True)
    resident = open_data(spec, data, None, evaluation=evaluation, augmentation=CROPS)
    assert streamed.shape == resident.shape == (1, 10, 10)
    assert torch.equal(read_all(streamed.train), read_all(resident.train))
    cropped = open_data(spec, data, None, augmentation=CROPS)
    assert cropped.shape == (1, 8, 8)
    assert torch.equal(cropped.train.images.plain(torch.arange(3)), plain_digits(spec, data, 3))


def plain_digits(spec, data, n):
    return open_data(spec, data, None).train.images.plain(torch.arange(n))


@pytest.mark.parametrize(
    ("name", "data", "evaluation", "says"),
    [
        ("oxford_pets", {}, Evaluation(), "no common size; set eval.name"),
        ("oxford_pets", {"short_side": 18}, CENTRE, "short_side 18 is below eval.resize 20"),
        ("digits", {"short_side": 20}, Evaluation(), "leave data.short_side out"),
        ("digits", {"normalisation": "clip"}, Evaluation(), "images are grey"),
    ],
)
def test_what_cannot_be_seen_is_a_usage_error(pets, name, data, evaluation, says):
    from classfair_plugins.datasets import digits

    spec = SMALL.get(name) or digits.classfair_datasets()[0]
    with pytest.raises(UsageError, match=rf"data \({name}\): .*{says}"):
        open_data(spec, Data(name=name, **data), pets, evaluation=evaluation)


def test_normalisation_is_the_data_set_s_own_unless_weights_want_another(pets):
    own = opened(pets).train.images.plain(torch.arange(2))
    clip = opened(pets, normalisation="clip").train.images.plain(torch.arange(2))
    half = opened(pets, normalisation="half").train.images.plain(torch.arange(2))
    raw = (half / 2 + 0.5).double()
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073], dtype=torch.float64)
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711], dtype=torch.float64)
    expected = (raw - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(clip.double(), expected, rtol=0, atol=1e-5)
    assert not torch.equal(own, clip)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=NAMES)
def test_a_gpu_sees_the_same_images(augmentation):
    found, labels = pictures(), np.arange(6) % 3
    look = Look(MEAN, STD, CENTRE, augmentation)
    index = torch.tensor([5, 0, 3, 3, 1])
    rows = parameter_table(augmentation, len(index), seeded())
    wanted = both(look, found)[0].augmented(index, rows)
    streamed = StreamedImages(lambda i: found[i], labels, 3, (0, 0), look, "cuda")
    store = on_device(flat(found), np.arange(6), "cuda")
    resident = ResidentImages(store, labels, (0, 0), look, "cuda")
    for made in (streamed, resident):
        torch.testing.assert_close(made.augmented(index, rows).cpu(), wanted, rtol=0, atol=1e-6)
