"""The messages of the service, made when this module is imported.

The numbers and names of fields are those of KServe's and Triton's published service. A table replaces
generated code, which is bound to the release of protobuf that made it. Messages that are nested there stand
on their own here: the wire does not tell them apart.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
_Field = descriptor_pb2.FieldDescriptorProto
_NAMED = ("1 name string", "2 version string")
_TENSOR = ("1 name string", "2 datatype string", "3 shape repeated int64")
_PARAMETERS = "parameters map InferParameter"
_MESSAGES: dict[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("1 live bool",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("1 ready bool",),
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": ("1 ready bool",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (*_NAMED, "3 extensions repeated string"),
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse": (
        "1 name string",
        "2 versions repeated string",
        "3 platform string",
        "4 inputs repeated TensorMetadata",
        "5 outputs repeated TensorMetadata",
    ),
    "TensorMetadata": _TENSOR,
    "InferParameter": (
        "1 bool_param oneof bool",
        "2 int64_param oneof int64",
        "3 string_param oneof string",
        "4 double_param oneof double",
        "5 uint64_param oneof uint64",
    ),
    "InferTensorContents": (
        "1 bool_contents repeated bool",
        "6 fp32_contents repeated float",
        "8 bytes_contents repeated bytes",
    ),
    "InferInputTensor": (*_TENSOR, f"4 {_PARAMETERS}", "5 contents InferTensorContents"),
    "InferRequestedOutputTensor": ("1 name string", f"2 {_PARAMETERS}"),
    "ModelInferRequest": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        f"4 {_PARAMETERS}",
        "5 inputs repeated InferInputTensor",
        "6 outputs repeated InferRequestedOutputTensor",
        "7 raw_input_contents repeated bytes",
    ),
    "InferOutputTensor": (*_TENSOR, f"4 {_PARAMETERS}", "5 contents InferTensorContents"),
    "ModelInferResponse": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        f"4 {_PARAMETERS}",
        "5 outputs repeated InferOutputTensor",
        "6 raw_output_contents repeated bytes",
    ),
    # On the wire a message is its bytes. So it can be put in as another server has sent it.
    "ModelStreamInferResponse": ("1 error_message string", "2 infer_response bytes"),
    "ModelConfigRequest": _NAMED,
    "ModelConfigResponse": ("1 config ModelConfig",),
    "ModelConfig": (
        "1 name string",
        "2 platform string",
        "3 version_policy ModelVersionPolicy",
        "4 max_batch_size int32",
        "5 input repeated ModelInput",
        "6 output repeated ModelOutput",
        "14 parameters map ModelParameter",
        "17 backend string",
    ),
    "ModelVersionPolicy": ("3 specific SpecificVersions",),
    "SpecificVersions": ("1 versions repeated int64",),
    "ModelInput": ("1 name string", "2 data_type DataType", "4 dims repeated int64", "8 optional bool"),
    "ModelOutput": ("1 name string", "2 data_type DataType", "3 dims repeated int64"),
    "ModelParameter": ("1 string_value string",),
    "ModelStatisticsRequest": _NAMED,
    "ModelStatisticsResponse": ("1 model_stats repeated ModelStatistics",),
    "ModelStatistics": (
        *_NAMED,
        "3 last_inference uint64",
        "4 inference_count uint64",
        "5 execution_count uint64",
        "6 inference_stats InferStatistics",
        "7 batch_stats repeated InferBatchStatistics",
    ),
    "InferBatchStatistics": ("1 batch_size uint64",),
    "InferStatistics": (
        "1 success StatisticDuration",
        "2 fail StatisticDuration",
        "3 queue StatisticDuration",
        "4 compute_input StatisticDuration",
        "5 compute_infer StatisticDuration",
        "6 compute_output StatisticDuration",
        "7 cache_hit StatisticDuration",
        "8 cache_miss StatisticDuration",
    ),
    "StatisticDuration": ("1 count uint64", "2 ns uint64"),
    "ModelRepositoryParameter": (
        "1 bool_param oneof bool",
        "2 int64_param oneof int64",
        "3 string_param oneof string",
        "4 bytes_param oneof bytes",
    ),
    "RepositoryIndexRequest": ("1 repository_name string", "2 ready bool"),
    "RepositoryIndexResponse": ("1 models repeated ModelIndex",),
    "ModelIndex": (*_NAMED, "3 state string", "4 reason string"),
    "RepositoryModelLoadRequest": (
        "1 repository_name string",
        "2 model_name string",
        "3 parameters map ModelRepositoryParameter",
    ),
    "RepositoryModelLoadResponse": ("1 model_name string", "2 isLoaded bool"),
    "RepositoryModelUnloadRequest": (
        "1 repository_name string",
        "2 model_name string",
        "3 parameters map ModelRepositoryParameter",
    ),
    "RepositoryModelUnloadResponse": (),
}
"""The fields of each message: number, name, perhaps `repeated`, `map` (from strings) or `oneof`, and type."""
_ENUMS = {"DataType": {"TYPE_INVALID": 0, "TYPE_BOOL": 1, "TYPE_FP32": 11, "TYPE_STRING": 13}}
_CHOICE = "parameter_choice"
"""The name of each oneof."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="hmi/open_inference.proto", package=PACKAGE, syntax="proto3"
    )
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for label, number in values.items():
            enum.value.add(name=label, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add(message, field)
    return file


def _add(message: Any, field: str) -> None:
    """Add a field of the table to a message's description."""
    number, name, *how, kind = field.split()
    repeated = how in (["repeated"], ["map"])
    made = message.field.add(
        name=name, number=int(number), label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    )
    if how == ["map"]:
        entry = message.nested_type.add(name="".join(p.title() for p in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add(entry, "1 key string")
        _add(entry, f"2 value {kind}")
        kind = f"{message.name}.{entry.name}"
    if how == ["oneof"]:
        if not message.oneof_decl:
            message.oneof_decl.add(name=_CHOICE)
        made.oneof_index = 0
    if kind in _ENUMS:
        made.type, made.type_name = _Field.TYPE_ENUM, f".{PACKAGE}.{kind}"
    elif kind[0].isupper():
        made.type, made.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        made.type = getattr(_Field, f"TYPE_{kind.upper()}")


# A pool of its own: a process may import a client's code of the same messages, too.
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())
MESSAGES: dict[str, Any] = {
    name: message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    for name in _MESSAGES
}
"""The classes of all messages, by name."""


def parameter_value(parameter: Any) -> Any:
    """The value of an InferParameter or ModelRepositoryParameter; None if it has none."""
    which = parameter.WhichOneof(_CHOICE)
    return None if which is None else getattr(parameter, which)
