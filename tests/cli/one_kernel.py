"""A worker whose notebooks run one after the other in one kernel, which imports torch once.

`ddlnb survey reproduce` gives each a fresh one; here names are forgotten between two notebooks.
"""

import asyncio
import sys
from functools import partial
from pathlib import Path

import papermill
from jupyter_client import AsyncKernelManager

from ddlnb.survey import execution


async def _forget(kernel: AsyncKernelManager, folder: str) -> None:
    client = kernel.client()
    client.start_channels()
    await client.wait_for_ready()
    await client.execute(f"%reset -f\n%cd -q {folder}", reply=True)
    client.stop_channels()


def _execute(kernel: AsyncKernelManager, execute, **call) -> None:
    if kernel.has_kernel:
        asyncio.run(_forget(kernel, call["cwd"]))
    execute(**call, km=kernel)


if __name__ == "__main__":
    one = partial(_execute, AsyncKernelManager(kernel_name="python3"))
    papermill.execute_notebook = partial(one, papermill.execute_notebook)
    execution._serve(Path(sys.argv[1]))
