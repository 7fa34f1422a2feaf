"""Runs a program that may lock no more memory than so many KiB, as a service without LimitMEMLOCK has it.

    starve.py KIB -- PROGRAM ARGUMENTS

The privileged may lock without limit: that privilege goes, all others stay. The program takes this process's
place.
"""

import ctypes
import os
import resource
import sys

PR_CAPBSET_DROP, CAP_IPC_LOCK = 24, 14


def main():
    limit, end = int(sys.argv[1]) << 10, sys.argv.index("--")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    # Root has, once it becomes another program, what may be had at all; others have nothing to drop.
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0 and libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(CAP_IPC_LOCK)) != 0:
        sys.exit(f"starve.py: prctl: {os.strerror(ctypes.get_errno())}")
    os.execv(sys.argv[end + 1], sys.argv[end + 1 :])


main()
