package gateway

import (
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/keys"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/logins"
)

// Documents of the key API, exported for the command line.
type (
	KeyRequest     = keys.KeyRequest
	KeyResponse    = keys.KeyResponse
	ConsentRequest = keys.ConsentRequest
)

// CommandLine is the client_id of the command line.
const CommandLine = logins.CommandLine

// Documents of the API of logins, exported for the command line.
type (
	TokenResponse  = logins.TokenResponse
	LoginMetadata  = logins.Metadata
	DeviceResponse = logins.DeviceResponse
	DeviceApproval = logins.DeviceApproval
)

// AuthorityView is the gateway's view of credentials: virtual keys, suspensions,
// revocations and session grants. It is exported for replay, which rebuilds the view
// from the ledger.
type AuthorityView = auth.Authority
