# SPDX-License-Identifier: Apache-2.0
"""P4Runtime v1 for the embedded target (https://p4.org/p4-spec/p4runtime/main/P4Runtime-Spec.html).

`device.Device` handles requests, `service.servicer.P4RuntimeServicer` adapts it to gRPC,
`service.server.serve` listens on an address.
"""
