"""PyTorch: attach(ddp) lets Tally sum the gradients of a DistributedDataParallel module.

Tally's buckets are its own (bucket.cap, in the reverse order of named_parameters); one is handed over when DDP's
buckets have brought all its parameters. DDP may thus rebuild its buckets, delay or reorder them: residuals go by
parameter, and no sum depends on it (D40 in ARCHITECTURE.md). Gradients are read where DDP has them; means are copied
there once.
"""
import atexit
import itertools
import queue
import threading
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from . import _abi, _arrays
from .client import Client, Setting, join, leave_all
from .errors import Error, Internal, InvalidArgument, Mismatch, Unsupported
from .group import Group, StepResult

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_SHARDED = ("FullyShardedDataParallel", "FSDPModule")
_STATE_VERSION = 1

_joined: Optional[Client] = None  # by attach calls without a client
_numbers = itertools.count(1)     # of modules, for their groups' names


def attach(ddp: DistributedDataParallel, scaler: Any = None, *, client: Optional[Client] = None,
           optimizer: Optional[torch.optim.Optimizer] = None, name: Optional[str] = None,
           config: Optional[str] = None, **settings: Setting) -> "Attached":
    """Sums this module's gradients by Tally from now on. All ranks attach the same modules in the same order.

    `scaler`: a GradScaler, whose scale is read in each step and must be equal on all ranks. `client`: None joins the
    job once per process, with `config` and `settings` as tally.join takes them. `optimizer`: whose learning rate
    compression.ef_lr_correction follows. `name`: of the module's group.

    Gradients are means over the ranks, as DDP's own. A step that any rank skips (a number that is not finite,
    Attached.skip_step) has NaN in every gradient of the module on every rank: a GradScaler then skips by itself, other
    programs look at Attached.committed. An error ends backward() on each rank with a RuntimeError that holds its text;
    Attached.error is the tally.Error. Ctrl-C is taken when backward() returns, at most step.timeout later.
    Errors: InvalidArgument, Unsupported (a sharded module, parameters on a device), and those of tally.join.
    """
    _check_module(ddp)
    parameters = _parameters(ddp)
    if client is None:
        client = _client(ddp, config, settings)
    elif config is not None or settings:
        raise InvalidArgument("attach: a client has its configuration already; give settings to tally.join")
    world = (dist.get_rank(ddp.process_group), dist.get_world_size(ddp.process_group))
    if world != (client.rank, client.size):
        raise Mismatch(f"attach: the module's process group says rank {world[0]} of {world[1]}, Tally's job rank "
                       f"{client.rank} of {client.size}; sums would not be over the same processes", rank=client.rank)
    attached = Attached(ddp, client, name or f"ddp.{next(_numbers)}", parameters, scaler, optimizer)
    ddp.register_comm_hook(attached, _hook)
    return attached


def _check_module(module: Any) -> None:
    for part in module.modules() if isinstance(module, torch.nn.Module) else [module]:
        for kind in type(part).__mro__:
            if kind.__name__ in _SHARDED:
                raise Unsupported(f"attach: {kind.__name__} shards parameters and gradients, which Tally does not sum; "
                                  "use DistributedDataParallel")
    if not isinstance(module, DistributedDataParallel):
        raise InvalidArgument(f"attach: expected a DistributedDataParallel module, got {type(module).__name__}")


def _client(ddp: DistributedDataParallel, config: Optional[str], settings: Dict[str, Setting]) -> Client:
    global _joined
    if _joined is not None and not _joined.left:
        if config is not None or settings:
            raise InvalidArgument("attach: this process has joined its job already; give settings to the first attach")
        return _joined
    rank, size = dist.get_rank(ddp.process_group), dist.get_world_size(ddp.process_group)
    if size != dist.get_world_size():
        raise InvalidArgument(f"attach: the module's process group has {size} of {dist.get_world_size()} processes: "
                              "join them by tally.join and give attach the client")
    # As torch was told them, which need not be by variables.
    _joined = join(config, {"worker.rank": rank, "job.workers": size}, **settings)
    return _joined


def _hook(state: "Attached", bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return state._take(bucket)


class _Step(NamedTuple):
    """What backward has brought so far."""

    gradients: Dict[int, torch.Tensor]  # by tensor number: DDP's memory
    futures: List[Tuple[torch.Tensor, "Future[Any]"]]
    scale: float
    missing: List[int]                  # per bucket of Tally's: parameters that have not come


class Attached:
    """A module whose gradients Tally sums. One thread, the training loop's."""

    def __init__(self, ddp: DistributedDataParallel, client: Client, name: str,
                 parameters: Sequence[Tuple[str, torch.nn.Parameter]], scaler: Any, optimizer: Any) -> None:
        self.client, self.name = client, name
        self.error: Optional[Error] = None      # why training cannot go on
        self.last: Optional[StepResult] = None  # how the last backward's step ended
        self._scaler, self._optimizer = scaler, optimizer
        self._parameters = list(parameters)
        self._numbers = {id(parameter): number for number, (_, parameter) in enumerate(parameters)}
        self._may_be_unused = any(getattr(ddp, flag, False) for flag in ("find_unused_parameters", "static_graph"))
        self._group: Optional[Group] = None
        self._loaded: Optional[Dict[str, Any]] = None
        self._weight: Optional[float] = None
        self._skip = False
        self._step: Optional[_Step] = None
        self._bucket_of: Dict[int, int] = {}
        self._ddp = weakref.ref(ddp)

    @property
    def committed(self) -> bool:
        """Whether the last backward's step counts on all ranks; if not, its gradients are NaN and residuals as
        before."""
        return self.last is not None and self.last.committed

    def skip_step(self) -> None:
        """Votes to skip the step of the next backward() (or the one under way), on all ranks. After backward its step has
        ended, and counts."""
        self._skip = True

    def set_weight(self, weight: float) -> None:
        """This rank's weight in the mean (default 1; for example its number of samples), from the next backward()
        on."""
        self._weight = float(weight)

    def state_dict(self) -> Dict[str, Any]:
        """What this rank's codecs carry, for a checkpoint: each rank its own. Between backward and the next one."""
        group = self._declared()
        state = torch.frombuffer(bytearray(group.export_state()), dtype=torch.uint8)
        return {"version": _STATE_VERSION, "step": group.step, "rank": self.client.rank, "size": self.client.size,
                "state": state}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from what the same rank saved, on all ranks; before the first backward. Errors: InvalidArgument,
        Mismatch; what does not fit the tensors or codecs is refused by the first backward."""
        if self._group is not None:
            raise InvalidArgument("load_state_dict: expected before the module's first backward", rank=self.client.rank)
        if state.get("version") != _STATE_VERSION:
            raise Unsupported(f"load_state_dict: version {state.get('version')}, this package reads {_STATE_VERSION}")
        for key, own in (("rank", self.client.rank), ("size", self.client.size)):
            if state[key] != own:
                raise Mismatch(f"load_state_dict: the state is of {key} {state[key]}, this process's {key} is {own}: "
                               "each rank reads its own, in a job of as many", rank=self.client.rank)
        self._loaded = state

    def _declared(self) -> Group:
        """Declared in the first backward: a checkpoint may be read back before, and a forward of one rank alone waits for
        nobody."""
        if self._group is not None:
            return self._group
        first_step = 0 if self._loaded is None else int(self._loaded["step"])
        tensors = [(name, (tuple(parameter.shape), _DTYPES[parameter.dtype])) for name, parameter in self._parameters]
        group = self.client.declare_group(tensors, self.name, None, first_step)
        if self._loaded is not None:
            group.import_state(self._loaded["state"].numpy().tobytes())
            self._loaded = None
        self._bucket_of = {number: bucket for bucket, members in enumerate(group.buckets) for number in members}
        self._group = group
        return group

    # In backward: DDP's buckets, in the same order on all ranks.

    def _take(self, bucket: dist.GradBucket) -> "Future[torch.Tensor]":
        if self.error is not None:
            raise self.error
        try:
            return self._bring(bucket)
        except BaseException as why:  # torch makes a RuntimeError of it; the other ranks wait for this one's part
            self.error = why if isinstance(why, Error) else Internal(f"{type(why).__name__}: {why}", rank=self.client.rank)
            self.client.abort(str(self.error))
            raise

    def _bring(self, bucket: dist.GradBucket) -> "Future[torch.Tensor]":
        step = self._step if self._step is not None else self._begin()
        future: "Future[Any]" = Future()
        step.futures.append((bucket.buffer(), future))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            self._arrive(step, self._number(parameter), gradient)
        if bucket.is_last():
            absent = [name for number, (name, _) in enumerate(self._parameters) if number not in step.gradients]
            if absent:
                raise Internal(f"DDP's buckets brought no gradient of {', '.join(absent)}", rank=self.client.rank)
            self._step = None
            last = future.then(_value_or_error)
            self._end_on_thread(step)
            return last
        return future

    def _begin(self) -> _Step:
        self.last = None
        ddp = self._ddp()
        if getattr(getattr(ddp, "_join_config", None), "enable", False) and \
                not getattr(ddp, "_divide_by_initial_world_size", True):
            raise Unsupported("join(divide_by_initial_world_size=False): means are over all ranks, with zeros of those that "
                              "have joined; leave it at its default", rank=self.client.rank)
        group = self._declared()
        scale = float(self._scaler.get_scale()) if self._scaler is not None else 1.0
        group.set_loss_scale(scale)
        if self._weight is not None:
            group.set_weight(self._weight)
        if self._optimizer is not None:
            group.set_learning_rate(float(self._optimizer.param_groups[0]["lr"]))
        self._step = _Step({}, [], scale, [len(members) for members in group.buckets])
        return self._step

    def _number(self, parameter: torch.Tensor) -> int:
        number = self._numbers.get(id(parameter))
        if number is None:
            raise Internal(f"DDP brought the gradient of a parameter of shape {tuple(parameter.shape)} that the module "
                           "did not have when it was attached", rank=self.client.rank)
        return number

    def _arrive(self, step: _Step, number: int, gradient: torch.Tensor) -> None:
        if number in step.gradients:
            raise Internal(f"DDP brought the gradient of {self._parameters[number][0]} twice in one step",
                           rank=self.client.rank)
        group = self._declared()
        step.gradients[number] = gradient
        # What DDP did not find in the graph is zeros here, and its residual waits for a step that uses it.
        if self._may_be_unused and not torch.count_nonzero(gradient).item():
            group.keep(number)
        bucket = self._bucket_of[number]
        step.missing[bucket] -= 1
        if step.missing[bucket] == 0:
            group.submit(bucket, [_memory(step.gradients[member]) for member in group.buckets[bucket]])

    # The step's end, on another thread: the loop goes on and waits for the futures. One thread for all modules of a
    # client, so that steps end in the order of backward on all ranks; a node daemon serves one after the other.

    def _end_on_thread(self, step: _Step) -> None:
        ends = _ends.get(self.client)
        if ends is None:
            ends = _ends[self.client] = _begin_thread(f"tally-rank-{self.client.rank}")
            weakref.finalize(self.client, ends.put, None)
        ends.put((self, step))

    def _finish(self, step: _Step) -> None:
        failed: Optional[Exception] = None
        try:
            self._end(step)
        except Exception as why:  # whatever it is, backward must not wait for ever
            failed = why
            self.error = why if isinstance(why, Error) else Internal(f"{type(why).__name__}: {why}")
        _complete(step.futures, failed)

    def _end(self, step: _Step) -> None:
        group, skip = self._declared(), self._skip
        self._skip = False
        self.last = group.end_step(skip)
        with torch.no_grad():
            for number, gradient in step.gradients.items():
                if not self.last.committed:
                    gradient.fill_(float("nan"))
                elif gradient.numel():
                    mean = torch.frombuffer(group.raw_output_float(number), dtype=torch.float32).view(gradient.shape)
                    gradient.copy_(mean if step.scale == 1 else mean * step.scale)


_ends: "weakref.WeakKeyDictionary[Client, queue.SimpleQueue[Any]]" = weakref.WeakKeyDictionary()
_threads: List[Tuple["queue.SimpleQueue[Any]", threading.Thread]] = []
_EXIT_BOUND_S = 5.0


def _begin_thread(name: str) -> "queue.SimpleQueue[Any]":
    steps: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
    thread = threading.Thread(target=_serve, args=(steps,), name=name, daemon=True)
    thread.start()
    _threads[:] = [(other, alive) for other, alive in _threads if alive.is_alive()] + [(steps, thread)]
    return steps


def _serve(steps: "queue.SimpleQueue[Any]") -> None:
    while True:
        item = steps.get()
        if item is None:
            return
        attached, step = item
        attached._finish(step)
        del item, attached, step  # a module that is dropped must not wait for its next step


@atexit.register
def _end_threads() -> None:
    """A thread that is within torch's C++ while Python ends would end the process by std::terminate."""
    leave_all()
    for steps, thread in _threads:
        steps.put(None)
        thread.join(_EXIT_BOUND_S)


def _complete(futures: Sequence[Tuple[torch.Tensor, "Future[Any]"]], failed: Optional[Exception]) -> None:
    """All together: each bucket's own memory is its result; on failure the last one carries it."""
    for buffer, future in futures[:-1]:
        future.set_result(buffer)
    buffer, future = futures[-1]
    future.set_result(buffer if failed is None else failed)


def _value_or_error(future: "Future[Any]") -> torch.Tensor:
    """DDP takes what an error is from a callback that raised; from Future.set_exception it would read a tensor."""
    value = future.value()
    if isinstance(value, Exception):
        raise value
    return value


def _memory(gradient: torch.Tensor) -> _arrays.Memory:
    return _arrays.Memory(gradient, gradient.data_ptr(), _abi.DTYPE.index(_DTYPES[gradient.dtype].upper()),
                          tuple(gradient.shape), gradient.stride(), True)


def _parameters(ddp: DistributedDataParallel) -> List[Tuple[str, torch.nn.Parameter]]:
    """Those that DDP reduces, each once, by the first of its names."""
    ignored = getattr(ddp, "parameters_to_ignore", ())
    parameters = [(name, parameter) for name, parameter in ddp.module.named_parameters()
                  if parameter.requires_grad and name not in ignored]
    for name, parameter in parameters:
        if parameter.device.type != "cpu":
            raise Unsupported(f"attach: parameter {name} is on {parameter.device}: this build takes host memory only")
        if parameter.dtype not in _DTYPES:
            raise Unsupported(f"attach: parameter {name} is {parameter.dtype}, expected one of "
                              f"{', '.join(_DTYPES.values())}; cast it, or leave it out of DDP")
    return parameters


__all__ = ["Attached", "attach"]
