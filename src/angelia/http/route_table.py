"""The routes by path, and what is kept with each route for all its requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Counter, Histogram

from angelia import metrics
from angelia.api import PARAMETER, Handler, Operation, Route, Surface


class RouteMetrics:
    """The counters of a route. Its labels are looked up once: for each request they would cost more than counting."""

    def __init__(self, method: str, path: str) -> None:
        self._labels = (method, path)
        self._requests: dict[int, Counter] = {}
        self._seconds: Histogram | None = None

    def observe(self, status: int, seconds: float) -> None:
        requests = self._requests.get(status)
        if requests is None:
            requests = self._requests[status] = metrics.HTTP_REQUESTS.labels(*self._labels, str(status))
        if self._seconds is None:
            self._seconds = metrics.HTTP_SECONDS.labels(*self._labels)
        requests.inc()
        self._seconds.observe(seconds)


class ServedRoute:
    """A route with its surface, its largest body and its counters. One without a handler is passed on to another
    process."""

    __slots__ = ("handler", "limit", "metrics", "operation", "surface")

    def __init__(self, operation: Operation[Any], handler: Handler | None) -> None:
        self.operation = operation
        self.handler = handler
        self.surface = Surface.of(operation.path)
        self.limit = operation.limit
        # The path is the route's template, with its parameters as AICQ writes them.
        self.metrics = RouteMetrics(operation.method, PARAMETER.sub(r":\1", operation.path))


@dataclass(slots=True)
class _Node:
    """A place in the tree of paths: the segments that may follow, and the routes of the path that ends here."""

    literals: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    spanning: _Node | None = None
    methods: dict[str, ServedRoute] = field(default_factory=dict)
    names: tuple[str, ...] = ()


Match = tuple[dict[str, ServedRoute], Sequence[str], Sequence[str]]
_NOTHING: Match = ({}, (), ())
_MOST_SPANNED = 40  # segments of a path with a spanning parameter: each place where it may end is tried


class RouteTable:
    """Finds the route of a request, segment by segment. What is spelt out wins over a parameter, and that over one that
    may span several segments; a trailing slash makes another path."""

    def __init__(self, routes: Sequence[Route], passed_on: Sequence[Operation[Any]] = ()) -> None:
        self._exact: dict[str, Match] = {}
        self._root = _Node()
        served = [ServedRoute(route.operation, route.handler) for route in routes]
        for route in (*served, *(ServedRoute(operation, None) for operation in passed_on)):
            operation = route.operation
            end = self._end_of(operation)
            if end.methods and end.names != operation.path_names:
                raise ValueError(f"{operation.path} is declared with other parameter names too")
            if operation.method in end.methods:
                raise ValueError(f"{operation.method} {operation.path} is declared twice")
            end.names = operation.path_names
            end.methods[operation.method] = route
            if not end.names:
                self._exact[operation.path] = (end.methods, (), ())

    def match(self, path: str) -> Match:
        """Returns the routes of a path by method, and the raw values and names of its parameters."""
        exact = self._exact.get(path)
        return exact if exact is not None else _match(self._root, path.split("/"), 0, ()) or _NOTHING

    def __iter__(self) -> Iterator[ServedRoute]:
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            yield from node.methods.values()
            waiting += [*node.literals.values(), *(one for one in (node.parameter, node.spanning) if one)]

    def _end_of(self, operation: Operation[Any]) -> _Node:
        """The node of a declared path, made where there is none."""
        node = self._root
        for segment in operation.path.split("/"):
            parameter = PARAMETER.fullmatch(segment)
            if parameter and parameter[1] in operation.spanning:
                node.spanning = node.spanning or _Node()
                node = node.spanning
            elif parameter:
                node.parameter = node.parameter or _Node()
                node = node.parameter
            elif PARAMETER.search(segment):
                raise ValueError(f"{operation.path}: a parameter is a whole segment")
            else:
                node = node.literals.setdefault(segment, _Node())
        return node


def _match(node: _Node, segments: Sequence[str], at: int, values: tuple[str, ...]) -> Match | None:
    if at == len(segments):
        return (node.methods, values, node.names) if node.methods else None
    segment = segments[at]
    literal = node.literals.get(segment)
    found = _match(literal, segments, at + 1, values) if literal is not None else None
    if found is None and node.parameter is not None and segment:
        found = _match(node.parameter, segments, at + 1, (*values, segment))
    if found is None and node.spanning is not None and len(segments) <= _MOST_SPANNED:
        # The fewest segments first, so that what is spelt out behind the parameter wins.
        for end in range(at + 1, len(segments) + 1):
            value = "/".join(segments[at:end])
            found = _match(node.spanning, segments, end, (*values, value)) if value else None
            if found is not None:
                break
    return found
