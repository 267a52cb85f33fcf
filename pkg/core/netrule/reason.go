package netrule

// Reason is the reason why a flow was denied or ended early.
type Reason string

// The reasons for which a Set denies a request.
const (
	HostDenied    Reason = "host_denied"    // no rule matches the host
	PortDenied    Reason = "port_denied"    // no rule for the host allows the port
	ModeDenied    Reason = "mode_denied"    // the rules for the host and port are of other modes
	MethodDenied  Reason = "method_denied"  // no rule for the host, port and mode allows the method
	PathDenied    Reason = "path_denied"    // no rule that allows the method has a pattern that matches the path
	PathAmbiguous Reason = "path_ambiguous" // servers read the path in different ways, and the rules restrict paths
)

// RequestDenied is the type of error (RFC 9209) in the field Proxy-Status of responses that
// the egress-broker makes itself, in place of a server.
const RequestDenied = "http_request_denied"

// Reasons for which the egress-broker denies a request apart from its rules, and which
// services that receive them distinguish.
const (
	AddressBlocked  Reason = "address_blocked"  // the name has an address that may not be dialled
	EndpointUnknown Reason = "endpoint_unknown" // the endpoint is not configured
)
