"""Small traces of a GPU, written by hand, with answers that can be worked out on paper."""

from ddlnb.traces.chrome import event_of

HOST = 100  # the process
MAIN, AUTOGRAD = 1, 2  # threads
COMPUTE, COPY, NCCL = 7, 20, 30  # streams


def header():
    return {"schemaVersion": 1, "deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}]}


def call(name, ts, dur, correlation, thread=MAIN):
    args = {"cbid": 211, "correlation": correlation}
    return event("cuda_runtime", name, ts, dur, HOST, thread, args)


def kernel(name, ts, dur, correlation, stream=COMPUTE, category="kernel", **more):
    args = {"device": 0, "stream": stream, "correlation": correlation, **more}
    return event(category, name, ts, dur, 0, stream, args)


def event(category, name, ts, dur, pid=HOST, tid=MAIN, args=None):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args or {},
    }


def flow(number, forward, backward):
    """Return the two ends of the flow from an operation to its backward."""
    common = {"cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": HOST}
    return [
        {**common, "ph": "s", "tid": MAIN, "ts": forward},
        {**common, "ph": "f", "tid": AUTOGRAD, "ts": backward, "bp": "e"},
    ]


def events_in(written):
    """Return events as a reader of files has them."""
    return [event_of(one, "written by hand") for one in written]


def two_streams():
    """Return a kernel, a copy that waits for it by an event, and a synchronisation.

    Launched at 0, 10 and 20; run from 5 to 105, from 105 to 155, and from 105 to 305.
    """
    wait = {
        "stream": COPY,
        "device": 0,
        "correlation": 3,
        "wait_on_stream": COMPUTE,
        "wait_on_cuda_event_record_corr_id": 2,
        "wait_on_cuda_event_id": 1,
    }
    return [
        call("cudaLaunchKernel", 0, 4, 1),
        call("cudaEventRecord", 5, 1, 2),
        call("cudaStreamWaitEvent", 7, 1, 3),
        event("cuda_sync", "Stream Wait Event", 7, 1, 0, COPY, wait),
        call("cudaMemcpyAsync", 10, 4, 4),
        call("cudaLaunchKernel", 20, 4, 5),
        kernel("gemm", 5, 100, 1),
        kernel("Memcpy DtoH (Device -> Pinned)", 105, 50, 4, COPY, "gpu_memcpy", bytes=1 << 20),
        kernel("relu", 105, 200, 5),
        call("cudaDeviceSynchronize", 30, 280, 6),
        event("cuda_sync", "Context Sync", 30, 280, 0, 0, {"device": 0, "correlation": 6}),
        call("cudaLaunchKernel", 320, 4, 7),
        kernel("adam", 330, 10, 7),
    ]


def one_iteration():
    """Return two layers on a GPU whose host is ahead, with the all-reduce of both gradients.

    Forward: kernels from 100 to 200 and from 200 to 400. Backward: from 400, gradients of the
    second layer ready at 700, of the first at 900; the all-reduce from 910 to 1210.
    """
    shapes = {"Input Dims": [[4, 8]], "Input type": ["float"]}
    evaluate = "autograd::engine::evaluate_function: "
    accumulate = "torch::autograd::AccumulateGrad"
    return [
        event("python_function", "nn.Module: Linear_0", 10, 15),
        event("cpu_op", "aten::linear", 11, 10),
        call("cudaLaunchKernel", 12, 4, 1),
        kernel("forward_0", 100, 100, 1),
        event("python_function", "nn.Module: Linear_1", 30, 15),
        event("cpu_op", "aten::linear", 31, 10),
        call("cudaLaunchKernel", 32, 4, 2),
        kernel("forward_1", 200, 200, 2),
        event("cpu_op", f"{evaluate}AddmmBackward0", 50, 10, HOST, AUTOGRAD),
        call("cudaLaunchKernel", 52, 4, 3, AUTOGRAD),
        kernel("backward_1", 400, 300, 3),
        event("cpu_op", f"{evaluate}{accumulate}", 61, 4, HOST, AUTOGRAD),
        event("cpu_op", accumulate, 62, 2, HOST, AUTOGRAD, shapes),
        event("cpu_op", f"{evaluate}AddmmBackward0", 70, 10, HOST, AUTOGRAD),
        call("cudaLaunchKernel", 72, 4, 4, AUTOGRAD),
        kernel("backward_0", 700, 200, 4),
        event("cpu_op", f"{evaluate}{accumulate}", 81, 4, HOST, AUTOGRAD),
        event("cpu_op", accumulate, 82, 2, HOST, AUTOGRAD, shapes),
        call("cudaLaunchKernelExC", 90, 4, 5, AUTOGRAD),
        kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            910,
            300,
            5,
            NCCL,
            **{"Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float"},
        ),
        event("user_annotation", "Optimizer.step#SGD.step", 120, 30),
        call("cudaLaunchKernel", 130, 4, 6),
        kernel("sgd", 1210, 40, 6),
        *flow(1, 11, 70),
        *flow(2, 31, 50),
    ]
