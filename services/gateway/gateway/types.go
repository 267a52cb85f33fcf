package gateway

import (
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/keys"
)

// Documents of the API that the command line sends and reads.
type (
	KeyRequest     = keys.KeyRequest
	KeyResponse    = keys.KeyResponse
	ConsentRequest = keys.ConsentRequest
)

// AuthorityView is the gateway's view of what lets a caller in, as replay rebuilds
// it.
type AuthorityView = auth.Authority

// BodyLimits bounds request bodies.
type BodyLimits = body.Limits
