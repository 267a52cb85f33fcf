package main

import "go/ast"

// decoderHome lists the folders that may decode a message or stored bytes into an event:
// eventlog has the decoder, and the trusted core, which has no dependencies, has one for
// exports. messageHome lists the folders that may call the method Metadata of a message:
// eventlog, and consumer and follow, which receive messages and pass them on.
var (
	decoderHome = []string{"pkg/eventlog", "pkg/core"}
	messageHome = []string{"pkg/eventlog", "pkg/consumer", "pkg/follow"}
)

// decoders counts the places that decode an event without the checks of eventlog.Open:
// outside decoderHome, calls of contract.DecodeEvent and declarations of variables of
// the type contract.Event; outside messageHome, calls of the method Metadata of a
// JetStream message; in every folder, calls of eventlog.Open and OpenBytes without a
// filter.
func (t *tree) decoders() figure {
	out := figure{name: "decoders of events outside their home"}
	for f := range t.code {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			var found string
			switch n := n.(type) {
			case *ast.ValueSpec:
				if n.Type != nil && selected(n.Type, "contract", "Event") && !f.under(decoderHome...) {
					found = "var of contract.Event"
				}
			case *ast.CallExpr:
				s, ok := n.Fun.(*ast.SelectorExpr)
				switch {
				case !ok:
				case selected(s, "contract", "DecodeEvent") && !f.under(decoderHome...):
					found = "contract.DecodeEvent"
				case s.Sel.Name == "Metadata" && len(n.Args) == 0 && !f.under(messageHome...):
					found = "Metadata"
				case (selected(s, "eventlog", "Open") || selected(s, "eventlog", "OpenBytes")) && len(n.Args) < 2:
					found = "eventlog." + s.Sel.Name + " without a filter"
				}
			}
			if found != "" {
				out.detail = append(out.detail, f.at(n.Pos())+" "+found)
			}
			return true
		})
	}
	out.n = float64(len(out.detail))
	return out
}

// selected reports whether an expression is pkg.name.
func selected(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}
