"""The Open Inference Protocol over gRPC: the service `inference.GRPCInferenceService`, as KServe and Triton
define it. Only this package imports grpc and protobuf. Only a server with `grpc_port` imports grpc; one that
answers a message for another server imports protobuf.

`messages` has the messages of the wire, `infer` their tensors, `answering` lets the engine answer them and
`passing` another server. `service` has the calls, `admission` what each call must pass and the form of its
errors, and `server` the port.
"""
