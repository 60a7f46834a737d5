"""Operations on batches of uint8 images, equal to Pillow's on single ones to the last bit.

What Pillow does in fixed point or float32 is done here in the same numbers, so an image does not
change with the device it is augmented on. Each function takes [B, H, W, C] uint8 (C is 1 or 3) and
one magnitude an image, and returns a tensor of the same form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Magnitudes = Sequence[float]
_FIXED = 1 << 16
_GREY = (19595, 38470, 7471)
"""Weights of red, green and blue in grey, in 1 / 65536 (ITU-R 601-2), as Pillow has them."""


def apply(op: str, images: Tensor, magnitudes: Magnitudes) -> Tensor:
    """Return images under an operation of :data:`OPERATIONS`."""
    return OPERATIONS[op](images, magnitudes)


# -- where pixels go -------------------------------------------------------------------------------


def _moved(kind: str, images: Tensor, magnitudes: Magnitudes) -> Tensor:
    """Shear, translate or rotate: nearest pixel, black beyond the border."""
    count, height, width, channels = images.shape
    rows = [_affine(kind, magnitude, height, width) for magnitude in magnitudes]
    a, b, c, d, e, f = torch.tensor(rows, device=images.device)[:, :, None, None].unbind(1)
    y = torch.arange(height, device=images.device)[:, None]
    x = torch.arange(width, device=images.device)[None]
    from_x = (c + y * b + x * a) >> 16
    from_y = (f + y * e + x * d) >> 16
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    place = from_y.clamp(0, height - 1) * width + from_x.clamp(0, width - 1)
    place = place.view(count, -1, 1).expand(-1, -1, channels)
    found = images.reshape(count, -1, channels).gather(1, place).view_as(images)
    return found * inside[..., None]


@functools.lru_cache(maxsize=4096)
def _affine(kind: str, magnitude: float, height: int, width: int) -> tuple[int, ...]:
    """Return the map from a target pixel's place to its source's, in 1 / 65536 pixels.

    Returns:
        (a, b, c, d, e, f): x_source = a x + b y + c, y_source = d x + e y + f, of pixels whose
        middles are at a half.
    """
    if kind == "Rotate":
        a, b, c, d, e, f = _rotation(magnitude, height, width)
    else:
        a, b, c, d, e, f = _shear_or_shift(kind, magnitude, height, width)
    middle = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return tuple(math.floor(value * _FIXED + 0.5) for value in middle)


def _rotation(degrees: float, height: int, width: int) -> tuple[float, ...]:
    angle = -math.radians(degrees % 360.0)
    a, b = round(math.cos(angle), 15), round(math.sin(angle), 15)
    d, e = round(-math.sin(angle), 15), round(math.cos(angle), 15)
    x, y = width / 2, height / 2
    return (a, b, a * -x + b * -y + x, d, e, d * -x + e * -y + y)


def _shear_or_shift(kind: str, magnitude: float, height: int, width: int) -> tuple[float, ...]:
    """Return torchvision's inverse affine matrix: shears about the corner, shifts in pixels."""
    if kind.startswith("Translate"):
        shift = int(magnitude)
        tx, ty = (shift, 0) if kind == "TranslateX" else (0, shift)
        x, y, sx, sy = width * 0.5, height * 0.5, 0.0, 0.0
    else:
        angle = math.radians(math.degrees(math.atan(magnitude)))
        sx, sy = (angle, 0.0) if kind == "ShearX" else (0.0, angle)
        tx, ty, x, y = 0, 0, 0.0, 0.0
    a = math.cos(-sy) / math.cos(sy)
    b = -math.cos(-sy) * math.tan(sx) / math.cos(sy) - math.sin(0.0)
    c = math.sin(-sy) / math.cos(sy)
    d = -math.sin(-sy) * math.tan(sx) / math.cos(sy) + math.cos(0.0)
    return (
        *(d, -b, d * (-x - tx) - b * (-y - ty) + x),
        *(-c, a, -c * (-x - tx) + a * (-y - ty) + y),
    )


# -- blends with a degenerate image ----------------------------------------------------------------


def _blended(images: Tensor, degenerate: Tensor, magnitudes: Magnitudes) -> Tensor:
    """Return degenerate + (1 + magnitude) (image - degenerate), in float32, cut off at its ends."""
    factor = torch.tensor([1.0 + m for m in magnitudes], dtype=torch.float32, device=images.device)
    # Differences are whole numbers: int16 holds them, and float32 is exact on them.
    other = degenerate.to(torch.int16)
    difference = (images.to(torch.int16) - other).float()
    blend = difference.mul_(factor.view(-1, 1, 1, 1)).add_(other)
    return blend.clamp_(0, 255).to(torch.uint8)


def _brightness(images: Tensor, magnitudes: Magnitudes) -> Tensor:
    return _blended(images, torch.zeros_like(images), magnitudes)


def _color(images: Tensor, magnitudes: Magnitudes) -> Tensor:
    return _blended(images, _grey(images).unsqueeze(-1).expand_as(images), magnitudes)


def _contrast(images: Tensor, magnitudes: Magnitudes) -> Tensor:
    total = _grey(images).sum((1, 2), dtype=torch.int64)
    pixels = images.shape[1] * images.shape[2]
    mean = (2 * total + pixels) // (2 * pixels)  # the mean, rounded half up
    return _blended(images, mean.to(torch.uint8).view(-1, 1, 1, 1).expand_as(images), magnitudes)


def _sharpness(images: Tensor, magnitudes: Magnitudes) -> Tensor:
    """Blend with the image smoothed by (1 1 1, 1 5 1, 1 1 1) / 13, its border left as it is."""
    values = images.to(torch.int32)
    lines = values[:, :-2] + values[:, 1:-1] + values[:, 2:]
    around = lines[:, :, :-2] + lines[:, :, 1:-1] + lines[:, :, 2:]
    smooth = images.clone()
    smooth[:, 1:-1, 1:-1] = ((2 * (around + 4 * values[:, 1:-1, 1:-1]) + 13) // 26).to(torch.uint8)
    return _blended(images, smooth, magnitudes)


def _grey(images: Tensor) -> Tensor:
    """Return [B, H, W] uint8."""
    if images.shape[-1] == 1:
        return images[..., 0]
    red, green, blue = (images[..., n].to(torch.int32) * _GREY[n] for n in range(3))
    return ((red + green + blue + (1 << 15)) >> 16).to(torch.uint8)


# -- what values become ----------------------------------------------------------------------------


def _posterize(images: Tensor, magnitudes: Magnitudes) -> Tensor:
    masks = [0xFF & ~((1 << (8 - int(bits))) - 1) for bits in magnitudes]
    return images & torch.tensor(masks, dtype=torch.uint8, device=images.device).view(-1, 1, 1, 1)


def _solarize(images: Tensor, magnitudes: Magnitudes) -> Tensor:
    least = torch.tensor([math.ceil(m) for m in magnitudes], device=images.device)
    return torch.where(images < least.view(-1, 1, 1, 1), images, 255 - images)


def _invert(images: Tensor, _magnitudes: Magnitudes) -> Tensor:
    return 255 - images


def _autocontrast(images: Tensor, _magnitudes: Magnitudes) -> Tensor:
    """Stretch each channel from its darkest and brightest value to 0 and 255."""
    low, high = images.flatten(1, 2).to(torch.int32).aminmax(dim=1)
    low, high = low.unsqueeze(-1).double(), high.unsqueeze(-1).double()
    scale = 255.0 / (high - low)
    offset = -low * scale
    values = torch.arange(256, device=images.device)
    table = (values * scale + offset).trunc().clamp(0, 255)
    return _looked_up(images, torch.where(high > low, table, values).to(torch.uint8))


def _equalize(images: Tensor, _magnitudes: Magnitudes) -> Tensor:
    """Spread each channel's values so that their histogram is flat."""
    counts = _histogram(images)
    pixels = images.shape[1] * images.shape[2]
    brightest = images.flatten(1, 2).amax(1).long().unsqueeze(-1)
    step = (pixels - counts.gather(2, brightest)) // 255
    below = counts.cumsum(2) - counts
    safe = step.clamp(min=1)
    table = ((safe // 2 + below) // safe).clamp(max=255)
    values = torch.arange(256, device=images.device)
    return _looked_up(images, torch.where(step > 0, table, values).to(torch.uint8))


def _histogram(images: Tensor) -> Tensor:
    """Return [B, C, 256] numbers of pixels."""
    values = images.flatten(1, 2).transpose(1, 2).long()
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int64, device=images.device)
    return counts.scatter_add_(2, values, torch.ones_like(values))


def _looked_up(images: Tensor, table: Tensor) -> Tensor:
    """Return the values of [B, C, 256] tables at an image's values."""
    values = images.flatten(1, 2).transpose(1, 2).long()
    return table.gather(2, values).transpose(1, 2).reshape(images.shape)


def _same(images: Tensor, _magnitudes: Magnitudes) -> Tensor:
    return images


OPERATIONS: dict[str, Callable[[Tensor, Magnitudes], Tensor]] = {
    "Identity": _same,
    **{
        kind: functools.partial(_moved, kind)
        for kind in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
    },
    "Brightness": _brightness,
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _autocontrast,
    "Equalize": _equalize,
    "Invert": _invert,
}
"""By the names that torchvision gives them."""
