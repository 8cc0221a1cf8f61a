"""The filters of a search as parameters of a function. The server and the tools for agents are made from signatures."""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import docstring_parser
from pydantic import Field

from allocembed.search.filters import Filters


def with_filters(*left_out: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a function's parameter `filters` by one for each field of `Filters` that is not left out.

    >>> @with_filters("folder", "after", "before", "least_height", "speech")
    ... def chosen(top: int, filters: Filters) -> Filters:
    ...     return filters
    >>> list(signature(chosen).parameters), chosen(top=1, longest=60).rules()
    (['top', 'shortest', 'longest'], [Rule(column='duration', operator='<=', value=60)])
    """
    kinds, docs = get_type_hints(Filters), docstring_parser.parse_from_object(Filters).params
    about = {each.arg_name: each.description for each in docs}
    names = [item.name for item in fields(Filters) if item.name not in left_out]
    types = {name: Annotated[kinds[name], Field(description=about[name])] for name in names}
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=types[name]) for name in names]

    def replace(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            given = {name: named.pop(name) for name in names if name in named}
            return function(*args, **named, filters=Filters(**given))

        stated = signature(function, eval_str=True)
        kept = [each for each in stated.parameters.values() if each.name != "filters"]
        call.__dict__["__signature__"] = stated.replace(parameters=[*kept, *added])
        return call

    return replace
