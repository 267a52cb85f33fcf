package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers"
)

// kinds writes a table of the kinds of providers in the registry. It omits the kinds
// with Local.
func kinds(w io.Writer) {
	fmt.Fprint(w, "\n## Kinds of providers\n\n| kind | base URL | needs | APIs | lists its models |\n|---|---|---|---|---|\n")
	for _, k := range providers.All.Kinds() {
		if k.Local != nil {
			continue
		}
		var apis []string
		for _, a := range k.APIs {
			apis = append(apis, a.Name)
		}
		base, needs, lists := "", "", "no"
		if k.Needs != "" {
			needs = "`" + k.Needs + "`"
		}
		if k.Base != "" {
			base = "`" + k.Base + "`"
		}
		if k.Lists {
			lists = "yes"
		}
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s |\n", k.Name, base, needs, strings.Join(apis, ", "), lists)
	}
}
