package netrule

// Reason is the reason why a flow was denied or ended early.
type Reason string

// The reasons of the rules.
const (
	HostDenied    Reason = "host_denied"    // no rule matches the host
	PortDenied    Reason = "port_denied"    // no rule for the host allows the port
	ModeDenied    Reason = "mode_denied"    // the rules for the host and port are of other modes
	MethodDenied  Reason = "method_denied"  // no rule for the host, port and mode allows the method
	PathDenied    Reason = "path_denied"    // no rule that allows the method has a pattern that matches the path
	PathAmbiguous Reason = "path_ambiguous" // servers read the path in different ways, and the rules restrict paths
)
