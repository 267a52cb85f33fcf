package proxy

import "github.com/binnacle-mesh/binnacle/pkg/core/netrule"

// The reasons for which the proxy denies flows or ends them early, besides those of package
// netrule.
const (
	HostInvalid        netrule.Reason = "host_invalid"        // not a canonical spelling of a host and port
	RequestInvalid     netrule.Reason = "request_invalid"     // malformed, or of ambiguous length
	AuthorityMismatch  netrule.Reason = "authority_mismatch"  // the Host field differs from the target or the tunnel
	SNIMismatch        netrule.Reason = "sni_mismatch"        // the TLS server name differs from the host of the tunnel
	TLSInvalid         netrule.Reason = "tls_invalid"         // the client did not complete a TLS handshake
	ResolveFailed      netrule.Reason = "resolve_failed"      // no address was found for the name
	ConnectFailed      netrule.Reason = "connect_failed"      // no address accepted a connection
	CertificateInvalid netrule.Reason = "certificate_invalid" // the certificate of the server is not valid for the host
	UpstreamFailed     netrule.Reason = "upstream_failed"     // the server closed the connection or sent an invalid response
	CredentialFailed   netrule.Reason = "credential_failed"   // the secret was not available, or a header field cannot contain it
	CredentialEchoed   netrule.Reason = "credential_echoed"   // an upgraded connection returned the secret
	EncodingUnknown    netrule.Reason = "encoding_unknown"    // the response has an encoding in which the secret cannot be found
	BytesExceeded      netrule.Reason = "bytes_exceeded"      // the byte allowance of the call is used up
	FlowsExceeded      netrule.Reason = "flows_exceeded"      // too many flows at a time
	TimedOut           netrule.Reason = "timed_out"           // the flow was idle or open for too long
	Cancelled          netrule.Reason = "call_ended"          // the call ended
	BrokerFailed       netrule.Reason = "broker_failed"       // the broker was killed; the bytes of the flow are not known
	ClientFailed       netrule.Reason = "client_failed"       // the client closed the connection early
)
