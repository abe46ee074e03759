"""The form that a text must keep, as OpenAI's and Hugging Face's clients ask for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from hmi.api.schemas.shared import Request
from hmi.errors import InvalidInput
from hmi.model.text.form import Form


class NamedSchema(Request):
    """A JSON schema with a name."""

    name: str | None = Field(default=None, description="Ignored, as description and strict.")
    description: str | None = None
    strict: bool | None = Field(default=None, description="Ignored: a schema is always kept.")
    json_schema: dict[str, Any] = Field(alias="schema")


def _kind(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<schema>" if isinstance(value, dict) else None


class AskedForm(Request):
    """OpenAI's `response_format` and text-generation-inference's `grammar`: see `form` of POST /generate."""

    type: Literal["text", "json_object", "json_schema", "json", "regex"] = Field(
        description="text: any text. json_object: a JSON object. json_schema: JSON that is valid by a "
        "schema. json, regex: Hugging Face's, with `value`."
    )
    named: NamedSchema | None = Field(default=None, alias="json_schema")
    value: (
        Annotated[
            Annotated[str, Tag("<text>")] | Annotated[dict[str, Any], Tag("<schema>")],
            Discriminator(_kind, "value_form", "must be a JSON schema, or a regular expression"),
        ]
        | None
    ) = Field(default=None, description="Hugging Face's: the JSON schema, or the regular expression.")

    def form(self, field: str) -> Form | None:
        """The form; None: any text is good. field: its place in the call. Raises InvalidInput."""
        if self.type == "text":
            return None
        place, schema = f"{field}.value", self.value
        if self.type == "regex":
            if not isinstance(schema, str):
                raise InvalidInput(f"{place} is missing: give the regular expression", field=place)
            return Form(regex=schema, place=field, value_place=place)
        if self.named is not None:
            place, schema = f"{field}.json_schema.schema", self.named.json_schema
        elif self.type == "json_object" and schema is None:
            return Form(json=True, place=field, value_place=f"{field}.type")
        elif self.type == "json_schema" and isinstance(schema, dict) and "schema" in schema:
            place, schema = f"{place}.schema", schema["schema"]  # as Hugging Face's client sends it
        if not isinstance(schema, dict):
            raise InvalidInput(f"{field}: the schema is missing: give it as an object", field=field)
        return Form(json_schema=schema, place=field, value_place=place)
