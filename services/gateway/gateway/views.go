package gateway

import (
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// Views returns the declarations of the gateway's views: the catalog of tools, and the
// state of credentials (AuthorityView).
func Views() []view.Declaration {
	return []view.Declaration{
		view.Of(services.Gateway, services.ViewCatalog, toolsReader, func(o *view.Origin) (view.State, error) {
			c := catalog.View{Keys: trust.KeyAt(o.Keys)}
			return view.Fold(c.Apply, c.Dump), nil
		}).At(snapshotVersion),
		view.Of(services.Gateway, services.ViewAuthority, toolsReader, func(*view.Origin) (view.State, error) {
			var a AuthorityView
			return view.Fold(a.Apply, a.Dump), nil
		}).At(snapshotVersion),
	}
}
