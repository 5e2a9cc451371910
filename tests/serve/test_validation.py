"""Invalid requests are refused at the first error, whatever their size."""

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from clearhead.serve.app import create_app
from clearhead.serve.errors import APIError
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry
from serving import tiny_writer

APP = create_app(ModelRegistry.from_models({"writer": tiny_writer()}), Limits(), page=True)
MANY = 1000
KEYS = {f"x{i}": None for i in range(MANY)}
VALUES = [
    [None] * MANY,
    [[None] * MANY] * MANY,
    [KEYS] * MANY,
    KEYS,
    [{"role": "user", "content": [KEYS] * MANY}],
]


def request_models():
    routes = [route for route in _routes(APP.routes) if isinstance(route, APIRoute)]
    fields = [parameter for route in routes for parameter in route.dependant.body_params]
    models = {field.field_info.annotation for field in fields}
    return sorted(models, key=lambda model: model.__name__)


def _routes(routes):
    for route in routes:
        yield route
        yield from _routes(getattr(getattr(route, "original_router", None), "routes", ()))


def num_errors(model, fields):
    try:
        model.model_validate(fields)
    except ValidationError as error:
        return error.error_count()
    except APIError:
        return 1
    return 0


def test_all_requests_are_found():
    names = {model.__name__ for model in request_models()}
    assert {"CompletionRequest", "RunRequest", "SubstitutionRequest", "ShiftRequest"} <= names


@pytest.mark.parametrize("model", request_models(), ids=lambda model: model.__name__)
def test_few_errors_are_reported(model):
    assert issubclass(model, BaseModel)
    assert num_errors(model, KEYS) <= 10
    for name in model.model_fields:
        for value in VALUES:
            assert num_errors(model, {name: value}) <= 20
