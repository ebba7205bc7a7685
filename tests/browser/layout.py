"""Boxes of a decision in a browser: four cards in a row, a node's GPUs side by side, nothing over anything else."""

from __future__ import annotations

import base64
from typing import Any

OVERLAP_PX = 1.0
"""Boxes may share so much in both directions: browsers place them at fractions of a pixel."""
_BOXES = """() => {
  const card = document.querySelector('.decision');
  const left = card.getBoundingClientRect().x, top = card.getBoundingClientRect().y;
  const box = (one) => {
    const found = one.getBoundingClientRect();
    return [found.x - left, found.y - top, found.width, found.height];
  };
  const seen = (what) => [...card.querySelectorAll(what)].filter((one) => one.checkVisibility());
  const parts = seen('.cards > div, dt, dd, h3, p, li, tr, th, td, summary, img, code, .label, .gpu, .slice');
  const over = [];
  parts.forEach((one, at) => parts.slice(at + 1).forEach((other) => {
    if (one.contains(other) || other.contains(one)) return;
    // A heading that spans two rows lies over the second one.
    if ([one, other].some((each) => each.rowSpan > 1) && [one, other].some((each) => each.tagName === 'TR')) return;
    const [a, b] = [box(one), box(other)];
    const [across, down] = [0, 1].map((k) => Math.min(a[k] + a[k + 2], b[k] + b[k + 2]) - Math.max(a[k], b[k]));
    const [first, second] = [one, other].map((each) => `${each.className || each.tagName} ${each.innerText}`);
    if (Math.min(across, down) > OVERLAP) over.push(`${first} | ${second}`);
  }));
  return {
    width: card.getBoundingClientRect().width,
    cards: seen('.cards > div').map(box),
    nodes: seen('.fleet .row:not(.loose) .gpus').map((one) => [...one.children].map(box)),
    parts: parts.map(box),
    wide: seen('.value, .slice > span').filter((one) => one.scrollWidth > one.parentElement.clientWidth + 1)
      .map((one) => one.innerText),
    over,
  };
}"""


def decision_boxes(page: Any) -> dict[str, Any]:
    """Boxes of the first decision on a page, from its own corner. [px]"""
    page.wait_for_selector(".decision", timeout=600_000)
    page.wait_for_function("[...document.querySelectorAll('.decision img')].every((one) => one.complete)")
    found: dict[str, Any] = page.evaluate(_BOXES.replace("OVERLAP", str(OVERLAP_PX)))
    return found


def check_decision(found: dict[str, Any], *, gpus_per_node: int) -> None:
    """Four cards in a row, the GPUs of each node side by side and equally wide, no box over another."""
    assert found["over"] == [], found["over"]
    assert found["wide"] == [], found["wide"]
    assert len(found["cards"]) == 4
    assert in_a_row(found["cards"])
    assert found["nodes"]
    for node in found["nodes"]:
        assert len(node) == gpus_per_node
        assert in_a_row(node)


def in_a_row(boxes: list[list[float]]) -> bool:
    """Whether boxes begin at one height, are equally wide and stand left to right."""
    x, y, width, _ = zip(*boxes, strict=True)
    ends = [begin + size for begin, size in zip(x, width, strict=True)]
    apart = all(end <= begin for end, begin in zip(ends[:-1], x[1:], strict=True))
    return max(y) - min(y) < 1 and max(width) - min(width) < 1 and apart


_DIFFERENCE = """async ([one, other]) => {
  const pixels = async (png) => {
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
    const board = new OffscreenCanvas(image.width, image.height).getContext('2d');
    board.drawImage(image, 0, 0);
    return board.getImageData(0, 0, image.width, image.height).data;
  };
  const [a, b] = [await pixels(one), await pixels(other)];
  if (a.length !== b.length) return 1;
  let differ = 0;
  for (let at = 0; at < a.length; at += 4)
    if ([0, 1, 2].some((part) => Math.abs(a[at + part] - b[at + part]) > 64)) differ += 1;
  return differ / (a.length / 4);
}"""
"""Share of the pixels of two pictures that differ much in a colour; 1 where they differ in size."""


def show_alone(page: Any, browser: Any) -> Any:
    """The same decision on an empty page: as wide, and at the same fraction of a pixel, as where it stands."""
    html, x, y, width = page.evaluate(
        "() => { const root = document.querySelector('.gpuplanner:has(.decision)');"
        " const style = root.parentElement.querySelector('style'), box = root.getBoundingClientRect();"
        " return [style.outerHTML + root.outerHTML, box.x % 1, box.y % 1, box.width]; }"
    )
    alone = browser.new_page(viewport={"width": 1600, "height": 2400})
    place = f"width:{width}px; padding:{y}px 0 0 {x}px"
    alone.set_content(f'<!DOCTYPE html><body style="margin:0"><div style="{place}">{html}</div>')
    return alone


def same_picture(page: Any, other: Any, share: float = 0.01) -> bool:
    """Whether at most such a share of the pixels of two decisions differ."""
    pictures = [base64.b64encode(one.locator(".decision").first.screenshot()).decode() for one in (page, other)]
    return bool(other.evaluate(_DIFFERENCE, pictures) <= share)
