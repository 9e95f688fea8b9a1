"""Calls that wait, such that Ctrl-C ends them. Python runs signal handlers on the main thread alone and not within a
call of C, so the main thread lets another one make the call and waits itself where handlers do run."""
import queue
import threading
from typing import Any, Callable, List, Optional

INTERRUPT_BOUND_S = 5.0


class _Call:
    def __init__(self, body: Callable[[], Any]) -> None:
        self.body = body
        self.done = threading.Event()
        self.result: Any = None
        self.error: Optional[BaseException] = None

    def run(self) -> None:
        try:
            self.result = self.body()
        except BaseException as error:  # the waiting thread's to raise
            self.error = error
        self.done.set()


class Caller:
    """A thread for one client's waiting calls, begun with the first of them."""

    def __init__(self) -> None:
        self._calls: "queue.SimpleQueue[Optional[_Call]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def run(self, body: Callable[[], Any], interrupt: Callable[[str], None]) -> Any:
        """What `body` returns or raises. If a signal's handler raises meanwhile (KeyboardInterrupt), `interrupt` is
        called with its name to make `body` return soon, and the handler's exception is raised."""
        if threading.current_thread() is not threading.main_thread():
            return body()
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._calls,), name="tally-calls", daemon=True)
            self._thread.start()
        call = _Call(body)
        self._calls.put(call)
        try:
            call.done.wait()
        except BaseException as signal:
            interrupt(type(signal).__name__)
            call.done.wait(INTERRUPT_BOUND_S)
            raise
        if call.error is not None:
            error, call.error = call.error, None
            try:
                raise error
            finally:
                del error  # else it and this frame hold each other, and all callers' variables
        return call.result

    def end(self) -> None:
        if self._thread is not None:
            self._calls.put(None)


def _serve(calls: "queue.SimpleQueue[Optional[_Call]]") -> None:
    while True:
        call = calls.get()
        if call is None:
            return
        call.run()
        del call  # holds what its caller may want freed


__all__: List[str] = ["Caller"]
