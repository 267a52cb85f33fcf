package rule

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

// The reasons of the broker's proxy.
const (
	HostInvalid        Reason = "host_invalid"        // not a canonical spelling of a host and port
	RequestInvalid     Reason = "request_invalid"     // malformed, or of ambiguous length
	AuthorityMismatch  Reason = "authority_mismatch"  // the Host field differs from the target or the tunnel
	SNIMismatch        Reason = "sni_mismatch"        // the TLS server name differs from the host of the tunnel
	TLSInvalid         Reason = "tls_invalid"         // the client did not complete a TLS handshake
	AddressBlocked     Reason = "address_blocked"     // the name has an address that may not be dialled
	ResolveFailed      Reason = "resolve_failed"      // the name has no address
	ConnectFailed      Reason = "connect_failed"      // no address accepted a connection
	CertificateInvalid Reason = "certificate_invalid" // the certificate of the server is not valid for the host
	UpstreamFailed     Reason = "upstream_failed"     // the server closed the connection or sent an invalid response
	CredentialFailed   Reason = "credential_failed"   // the secret was not available
	CredentialEchoed   Reason = "credential_echoed"   // an upgraded connection returned the secret
	EncodingUnknown    Reason = "encoding_unknown"    // the response has an encoding in which the secret cannot be found
	BytesExceeded      Reason = "bytes_exceeded"      // the byte allowance of the call is used up
	FlowsExceeded      Reason = "flows_exceeded"      // too many flows at a time
	TimedOut           Reason = "timed_out"           // the flow was idle or open for too long
	Cancelled          Reason = "call_ended"          // the call ended
	ClientFailed       Reason = "client_failed"       // the client closed the connection early
)
