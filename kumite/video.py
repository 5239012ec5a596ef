"""Pictures of an agent at work: a video file, or a window where there is a display."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kumite.errors import UserError, missing_extra

Show = Callable[[Any], None]


@contextmanager
def video(path: Path, fps: int = 30) -> Iterator[Show]:
    """Frames [height, width, 3] uint8 into an mp4 file."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise missing_extra("imageio-ffmpeg", "video") from None
    writer: Any = None

    def show(frame: Any) -> None:
        nonlocal writer
        if writer is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            height, width = frame.shape[:2]
            writer = imageio_ffmpeg.write_frames(
                str(path), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
            )
            writer.send(None)
        writer.send(frame.tobytes())

    try:
        yield show
    except OSError as error:
        raise UserError(f"the video {path} could not be written: {error}") from error
    finally:
        if writer is not None:
            writer.close()


def has_display() -> bool:
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.name == "nt"):
        return False
    try:
        import pygame
    except ImportError:
        return True  # `window` says what to install
    try:
        pygame.display.init()
    except pygame.error:  # the variable names a display that does not answer
        return False
    pygame.display.quit()
    return True


@contextmanager
def window(title: str, fps: int = 30) -> Iterator[Show]:
    """A window that shows frames at their speed."""
    try:
        import pygame
    except ImportError:
        raise missing_extra("pygame", "classic") from None
    pygame.display.init()
    clock, screen = pygame.time.Clock(), None

    def show(frame: Any) -> None:
        nonlocal screen
        if screen is None:
            screen = pygame.display.set_mode((frame.shape[1], frame.shape[0]))
            pygame.display.set_caption(title)
        screen.blit(pygame.image.frombuffer(frame.tobytes(), (frame.shape[1], frame.shape[0]), "RGB"), (0, 0))
        pygame.display.flip()
        pygame.event.pump()
        clock.tick(fps)

    try:
        yield show
    finally:
        pygame.display.quit()
