package gateway

import (
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// Views declares the gateway's views: the tools that it offers, and what lets a
// caller in.
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
