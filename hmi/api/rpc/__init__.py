"""The Open Inference Protocol over gRPC: the service `inference.GRPCInferenceService`, as KServe and Triton
define it. Only this package imports grpc and protobuf, and only a server with `grpc_port` imports it.

`messages` has the messages of the wire, `infer` their tensors, `service` the calls, `admission` what each
call must pass and the form of its errors, and `server` the port.
"""
