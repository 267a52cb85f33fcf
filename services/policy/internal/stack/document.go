package stack

import (
	"context"
	"crypto/sha256"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// Compile reads a policy document of a layer: signed ceilings (p0), an OPA bundle (p1)
// or an overlay (p2). The result is a *guard.Ceilings, *rego.Engine or *guard.Overlay,
// which must not be used if the error is not nil. Ceilings must be signed by a key that
// keys returns as a root key at lamport. The signature of a bundle is verified by
// rego.Verify, not here. An unknown layer is an error.
func Compile(layer string, body []byte, lamport uint64, keys guard.KeyAt) (any, error) {
	switch layer {
	case "p0":
		return guard.OpenP0(body, lamport, keys)
	case "p1":
		return engine(body)
	case "p2":
		var o guard.Overlay
		if err := contract.Decode(body, &o); err != nil {
			return nil, fmt.Errorf("overlay: %w", err)
		}
		return &o, o.Validate()
	}
	return nil, fmt.Errorf("policy layer %q is unknown", layer)
}

// engines holds the compiled bundles that are in use in this process, of type
// weak.Pointer[rego.Engine], by the SHA-256 digest of the bundle. With it, the tenants and
// the views of a process share an engine.
var engines sync.Map

// engine returns the compiled form of a bundle.
func engine(body []byte) (*rego.Engine, error) {
	digest := sha256.Sum256(body)
	if p, ok := engines.Load(digest); ok {
		if e := p.(weak.Pointer[rego.Engine]).Value(); e != nil {
			return e, nil
		}
	}
	e, err := rego.Compile(context.Background(), body)
	if err != nil {
		return nil, err
	}
	p := weak.Make(e)
	engines.Store(digest, p)
	runtime.AddCleanup(e, func(digest [sha256.Size]byte) { engines.CompareAndDelete(digest, p) }, digest)
	return e, nil
}

// Erased replaces a document whose content is erased or encrypted; only replay uses it.
// It takes the document's place in the stack, but decisions that depend on the document
// cannot be taken again.
type Erased struct {
	Layer string
}

// empty returns a nil pointer of the type that Compile returns for the layer.
func (x Erased) empty() any {
	switch x.Layer {
	case "p0":
		return (*guard.Ceilings)(nil)
	case "p1":
		return (*rego.Engine)(nil)
	}
	return (*guard.Overlay)(nil)
}

// Tainting reports whether the tool itself receives a secret. A secret granted by a
// pattern is used by the executor only.
func Tainting(t *contract.Tool) bool {
	return slices.ContainsFunc(t.Secrets, func(g contract.SecretGrant) bool { return !g.Pattern() })
}
