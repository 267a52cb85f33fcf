// Command builtin is the program of the built-in packs. The variable BINNACLE_PACK, which
// each manifest sets, is the name of the pack that it runs.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/binnacle-mesh/binnacle/packs/internal/assist"
	"github.com/binnacle-mesh/binnacle/packs/internal/browser"
	"github.com/binnacle-mesh/binnacle/packs/internal/document"
	"github.com/binnacle-mesh/binnacle/packs/internal/github"
	"github.com/binnacle-mesh/binnacle/packs/internal/image"
	"github.com/binnacle-mesh/binnacle/packs/internal/mail"
	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
	"github.com/binnacle-mesh/binnacle/packs/internal/slides"
	"github.com/binnacle-mesh/binnacle/packs/internal/sql"
	"github.com/binnacle-mesh/binnacle/packs/internal/swe"
	"github.com/binnacle-mesh/binnacle/packs/internal/web"
)

// packs holds the packs of this program by name.
var packs = map[string]pack.Func{
	"browser.interact":      pack.Of(browser.Interact),
	"doc.parse":             pack.Of(document.Parse),
	"github.issue.comment":  pack.Of(github.IssueComment),
	"github.issue.create":   pack.Of(github.IssueCreate),
	"github.issue.get":      pack.Of(github.IssueGet),
	"github.issue.list":     pack.Of(github.IssueList),
	"github.pr.create":      pack.Of(github.PullCreate),
	"github.pr.files":       pack.Of(github.PullFiles),
	"github.pr.get":         pack.Of(github.PullGet),
	"github.release.create": pack.Of(github.ReleaseCreate),
	"http.fetch":            pack.Of(web.Fetch),
	"image.convert":         pack.Of(image.Convert),
	"mail.send":             pack.Of(mail.Send),
	"mesh.plan":             pack.Of(assist.Plan),
	"mesh.route":            pack.Of(assist.Route),
	"research.deep":         pack.Of(web.Research),
	"slides.render":         pack.Of(slides.Render),
	"sql.query":             pack.Of(sql.QueryFile),
	"sql.server.query":      pack.Of(sql.QueryServer),
	"swe.solve":             pack.Of(swe.Solve),
	"web.scrape":            pack.Of(web.Scrape),
	"web.scrape_spa":        pack.Of(browser.ScrapeSPA),
	"web.test":              pack.Of(browser.Test),
}

func main() {
	name := os.Getenv("BINNACLE_PACK")
	f, ok := packs[name]
	if !ok {
		f = func(context.Context, []byte) (any, error) {
			return nil, pack.Fail(pack.HandlerFailed, "BINNACLE_PACK: this program has no pack %q", name)
		}
	}
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "usage: BINNACLE_PACK=NAME builtin <input.json")
		os.Exit(2)
	}
	os.Exit(pack.Main(f, os.Stdin, os.Stdout))
}
