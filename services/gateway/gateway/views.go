package gateway

import (
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// Views returns the declarations of the gateway's views: the catalog of tools, and the
// state of credentials (AuthorityView).
func Views() []view.Declaration {
	return []view.Declaration{
		view.Of(services.Gateway, services.ViewCatalog, toolsReader, func(*view.Origin) (view.State, error) {
			var c catalog.Catalog
			return view.Fold(c.Apply, c.Dump), nil
		}),
		view.Of(services.Gateway, services.ViewAuthority, toolsReader, func(*view.Origin) (view.State, error) {
			var a AuthorityView
			return view.Fold(a.Apply, a.Dump), nil
		}),
	}
}
