"""Whose kernels are run: a kernel is code, so a folder that somebody else can fill is not read.

Trusted is what belongs to this user or to root (the cache inside a container image), or what a group that this
process is in may write (a folder that a team shares on purpose). Nothing that everybody may write is.
"""

from __future__ import annotations

import os
import stat


def trusted(info: os.stat_result) -> bool:
    """Tell whether a file or folder may hold kernels to run."""
    if info.st_mode & stat.S_IWOTH:
        return False
    if info.st_uid in (0, os.geteuid()):
        return True
    return bool(info.st_mode & stat.S_IWGRP) and info.st_gid in (os.getegid(), *os.getgroups())


def anybody(info: os.stat_result) -> bool:
    """Trust a folder that the user named, such as a saved model."""
    del info
    return True


def rights(folder: os.stat_result) -> tuple[int, int]:
    """Return the modes of new folders and files: those of the cache folder, so that what is private or shared stays so.

    Everybody may write neither.
    """
    return folder.st_mode & 0o2775, folder.st_mode & 0o664
