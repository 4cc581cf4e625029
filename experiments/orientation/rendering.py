"""A room with photographs on its walls, seen through a pinhole camera that turns at its center.

The room is the cube [-1, 1]^3. World axes: x to the front wall, y to the left, z up. A rotation R [3, 3] takes vectors
of the camera to the world; the camera looks along its own x axis, with y to the left of the image and z up. So the
identity looks at the middle of the front wall, upright.
"""

import dataclasses

import numpy as np

from experiments.lib import gray_images

NORMALS = {
    "front": (1, 0, 0),
    "back": (-1, 0, 0),
    "left": (0, 1, 0),
    "right": (0, -1, 0),
    "ceiling": (0, 0, 1),
    "floor": (0, 0, -1),
}
"""Direction of each wall from the center."""

PICTURES = {
    "front": "astronaut",
    "back": "astronaut",
    "left": "coffee",
    "right": "camera",
    "ceiling": "rocket",
    "floor": "coins",
}
"""The photograph on each wall: the front and the back show the same."""

REPEATED = ("front", "back")
"""The walls that show the same photograph."""


@dataclasses.dataclass(frozen=True)
class Camera:
    """A pinhole camera with square pixels.

    Attributes:
        height, width: pixels of a frame.
        field: horizontal field of view in degrees, in (0, 180).
        rays: rays a pixel and side; a pixel is the mean over rays * rays of them.
    """

    height: int = 12
    width: int = 16
    field: float = 50.0
    rays: int = 3

    def directions(self) -> np.ndarray:
        """Return the directions of all rays in camera axes [height, width, ray, 3], of no particular length."""
        focal = self.width / 2 / np.tan(np.deg2rad(self.field) / 2)
        offset = (np.arange(self.rays) + 0.5) / self.rays
        across = (np.arange(self.width)[:, None] + offset - self.width / 2).ravel()  # from left to right, in pixels
        down = (np.arange(self.height)[:, None] + offset - self.height / 2).ravel()
        z, y = np.meshgrid(-down, -across, indexing="ij")
        grid = np.stack([np.full_like(y, focal), y, z], axis=-1)
        parts = grid.reshape(self.height, self.rays, self.width, self.rays, 3)
        return parts.transpose(0, 2, 1, 3, 4).reshape(self.height, self.width, self.rays**2, 3)


@dataclasses.dataclass(frozen=True)
class Room:
    """Pictures on the walls, in the order of `NORMALS`.

    Attributes:
        walls: gray values 0 .. 255 [6, side, side], as seen from the center of the room, top row first.
    """

    walls: np.ndarray

    @classmethod
    def of_photographs(cls, side: int = 64) -> "Room":
        """Hang up `PICTURES`: their middle squares, reduced to side * side pixels."""
        return cls(np.stack([square(gray_images.photograph(PICTURES[wall]), side) for wall in NORMALS]))

    def frames(self, camera: Camera, rotations: np.ndarray) -> np.ndarray:
        """Render what the camera sees, without noise.

        Args:
            camera: the camera.
            rotations: camera to world [frame, 3, 3].

        Returns:
            Gray values 0 .. 255 [frame, height, width].
        """
        wall, row, column = self._hits(camera, rotations)
        return self._gray(wall, row, column).mean(axis=-1)

    def share(self, camera: Camera, rotations: np.ndarray, walls: tuple[str, ...] = REPEATED) -> np.ndarray:
        """Return the share of each frame that shows some walls [frame]."""
        numbers = [list(NORMALS).index(wall) for wall in walls]
        return np.isin(self._hits(camera, rotations)[0], numbers).mean(axis=(1, 2, 3))

    def unfolded(self, width: int = 360) -> np.ndarray:
        """Return the panorama [width / 2, width]: yaw from 180 to -180 degrees, pitch from 90 to -90 downwards."""
        yaw = np.pi * (1 - 2 * (np.arange(width) + 0.5) / width)
        pitch = np.pi / 2 * (1 - 2 * (np.arange(width // 2) + 0.5) / (width // 2))
        flat = np.cos(pitch)[:, None] * np.stack([np.cos(yaw), np.sin(yaw)])[:, None]
        directions = np.stack([*flat, np.broadcast_to(np.sin(pitch)[:, None], flat[0].shape)], axis=-1)
        return self._gray(*strike(directions))

    def _hits(self, camera: Camera, rotations: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Follow the rays of all frames to their walls [frame, height, width, ray]."""
        return strike(np.einsum("fij,hwrj->fhwri", rotations, camera.directions()))

    def _gray(self, wall: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Interpolate pictures between the centers of their pixels; beyond the last center they are constant."""
        side = self.walls.shape[1]
        i, j = (np.clip(place * side - 0.5, 0, side - 1) for place in (row, column))
        top, left = (np.minimum(place.astype(int), side - 2) for place in (i, j))
        down, across = i - top, j - left
        upper = (1 - across) * self.walls[wall, top, left] + across * self.walls[wall, top, left + 1]
        lower = (1 - across) * self.walls[wall, top + 1, left] + across * self.walls[wall, top + 1, left + 1]
        return (1 - down) * upper + down * lower


def strike(directions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find where rays from the center of the room meet its walls.

    Args:
        directions: in world axes, not 0 [*ray, 3].

    Returns:
        Number of the wall in the order of `NORMALS`; the place on it, from its top and from its left as seen from the
        center, as shares of its side: three arrays [*ray].
    """
    normals = np.array(list(NORMALS.values()))
    # Seen from the center: the top of a wall is where z points, that of the ceiling at the back, of the floor in front.
    tops = np.array([(0, 0, 1)] * 4 + [(-1, 0, 0), (1, 0, 0)])
    rights = np.cross(normals, tops)
    along = directions @ normals.T
    wall = np.argmax(along, axis=-1)
    depth = np.max(along, axis=-1)
    row, column = (np.einsum("...i,...i->...", directions, axes[wall]) / depth for axes in (tops, rights))
    return wall, (1 - row) / 2, (1 + column) / 2


def square(picture: np.ndarray, side: int) -> np.ndarray:
    """Cut the middle square out of a picture, and reduce it to side * side pixels by averages of areas."""
    height, width = picture.shape
    size = min(height, width)
    top, left = (height - size) // 2, (width - size) // 2
    edges = np.linspace(0, size, side + 1)
    # Each new pixel's share of each old one, along one axis.
    shares = np.clip(
        np.minimum(edges[1:, None], np.arange(size) + 1) - np.maximum(edges[:-1, None], np.arange(size)), 0, 1
    )
    shares /= shares.sum(axis=1, keepdims=True)
    return shares @ picture[top : top + size, left : left + size] @ shares.T


def rotations_of(yaw: np.ndarray, pitch: np.ndarray, roll: np.ndarray) -> np.ndarray:
    """Return rotations [*frame, 3, 3] that look yaw to the left and pitch up, after a roll about the line of sight.

    Args:
        yaw, pitch, roll: angles in radians [*frame]; a positive roll lowers the right of the camera.
    """
    one, none = np.ones_like(yaw), np.zeros_like(yaw)

    def turn(angle: np.ndarray, axis: int) -> np.ndarray:
        c, s = np.cos(angle), np.sin(angle)
        rows = {
            0: [[one, none, none], [none, c, -s], [none, s, c]],
            1: [[c, none, s], [none, one, none], [-s, none, c]],
            2: [[c, -s, none], [s, c, none], [none, none, one]],
        }[axis]
        return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)

    return turn(yaw, 2) @ turn(-pitch, 1) @ turn(roll, 0)


def degrees_between(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the geodesic distance between rotations in degrees [*frame]: the angle of the turn from x to y."""
    # From the chord, as the arc cosine of the trace has no digits near 0: |x - y| = 2 sqrt(2) sin(angle / 2).
    chord = np.sqrt(np.sum((np.asarray(x, np.float64) - np.asarray(y, np.float64)) ** 2, axis=(-2, -1)))
    return np.rad2deg(2 * np.arcsin(np.clip(chord / np.sqrt(8), 0, 1)))
