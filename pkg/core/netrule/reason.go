package netrule

// Reason says why a flow was denied or ended early.
type Reason string

// The reasons of the rules.
const (
	HostDenied    Reason = "host_denied"    // no rule names the host
	PortDenied    Reason = "port_denied"    // no rule of the host names the port
	ModeDenied    Reason = "mode_denied"    // the rules of the host and port are of another mode
	MethodDenied  Reason = "method_denied"  // no such rule names the method
	PathDenied    Reason = "path_denied"    // no such rule has a pattern that matches the path
	PathAmbiguous Reason = "path_ambiguous" // servers read the path in different ways, and the rules restrict paths
)
