package gateway

import (
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/keys"
)

// Documents of the key API, exported for the command line.
type (
	KeyRequest     = keys.KeyRequest
	KeyResponse    = keys.KeyResponse
	ConsentRequest = keys.ConsentRequest
)

// AuthorityView is the gateway's view of credentials: virtual keys, suspensions,
// revocations and session grants. It is exported for replay, which rebuilds the view
// from the ledger.
type AuthorityView = auth.Authority
