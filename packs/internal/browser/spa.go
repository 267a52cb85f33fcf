package browser

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
	"github.com/binnacle-mesh/binnacle/packs/internal/web"
)

// Limits of web.scrape_spa.
const (
	idleTime  = 10 * time.Second // until the network is idle
	maxSource = 8 << 20          // bytes of the HTML
	maxItems  = 200              // elements of a field with all
)

// Field is a value to read from a page.
type Field struct {
	Selector  string `json:"selector"`
	Format    string `json:"format"` // text, html or attribute; "" means text
	Attribute string `json:"attribute"`
	All       bool   `json:"all"`
}

// SPAInput is the input of web.scrape_spa.
type SPAInput struct {
	View
	URL         string           `json:"url"`
	Fields      map[string]Field `json:"fields"`
	Formats     []string         `json:"formats"` // text, markdown, html, links
	WaitFor     string           `json:"wait_for"`
	WaitMS      int              `json:"wait_ms"`
	NetworkIdle *bool            `json:"network_idle"` // nil means true
	TimeoutMS   int              `json:"timeout_ms"`
}

// SPAOutput is the output of web.scrape_spa.
type SPAOutput struct {
	URL       string         `json:"url"`
	Status    int            `json:"status"`
	Title     string         `json:"title"`
	Data      map[string]any `json:"data"`
	Missing   []string       `json:"missing"`
	Text      *string        `json:"text,omitempty"`
	Markdown  *string        `json:"markdown,omitempty"`
	HTML      *string        `json:"html,omitempty"`
	Links     []string       `json:"links,omitzero"`
	Idle      bool           `json:"network_idle"`
	Truncated bool           `json:"truncated"`
	Refused   []string       `json:"refused_hosts"`
}

// check returns an error for an input that the schema permits, but that is not valid.
func (in *SPAInput) check() *pack.Error {
	if len(in.Fields) == 0 && len(in.Formats) == 0 {
		return pack.Invalid("/fields", "name fields, formats or both")
	}
	for name, f := range in.Fields {
		if (f.Format == "attribute") != (f.Attribute != "") {
			return pack.Invalid("/fields/"+escape(name)+"/attribute", "the format attribute needs the name of an attribute, and others have none")
		}
	}
	return checkAddress("/url", in.URL)
}

// selectors returns the selectors of the input by their JSON pointers.
func (in *SPAInput) selectors() map[string]string {
	all := map[string]string{}
	for name, f := range in.Fields {
		all["/fields/"+escape(name)+"/selector"] = f.Selector
	}
	if in.WaitFor != "" {
		all["/wait_for"] = in.WaitFor
	}
	return all
}

// ScrapeSPA loads a page with its scripts, waits until it is complete, and returns the requested
// fields and formats. It fails if fields are requested and the page has none of them.
func ScrapeSPA(ctx context.Context, in SPAInput) (SPAOutput, error) {
	out := SPAOutput{Data: map[string]any{}, Missing: []string{}}
	if e := in.check(); e != nil {
		return out, e
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	w, end, err := begin(context.WithoutCancel(ctx), in.View, in.selectors())
	if err != nil {
		return out, err
	}
	defer end()
	if e := w.t.navigate(ctx, "/url", in.URL); e != nil {
		return out, e
	}
	if e := w.complete(ctx, &in, &out); e != nil {
		return out, e
	}
	if e := w.fields(ctx, &in, &out); e != nil {
		return out, e
	}
	if len(in.Fields) > 0 && len(out.Data) == 0 {
		return out, pack.Fail(pack.SchemaMismatch, "the page has none of the fields: %s", clip(strings.Join(out.Missing, ", "), 500))
	}
	out.URL, out.Title = w.where(ctx)
	if e := w.formats(ctx, &in, &out); e != nil {
		return out, e
	}
	w.t.mu.Lock()
	out.Status = w.t.status
	w.t.mu.Unlock()
	out.Refused = w.t.refusedHosts()
	return out, nil
}

// complete waits until the element of in.WaitFor, if any, is visible, then, unless the input excludes
// it, until the network is idle, and then for in.WaitMS. It fails if the element is not visible in
// time, but not if the network is not idle.
func (w *work) complete(ctx context.Context, in *SPAInput, out *SPAOutput) *pack.Error {
	if in.WaitFor != "" {
		a := Action{Action: "wait", Selector: in.WaitFor, TimeoutMS: in.TimeoutMS}
		if e := w.visible(ctx, "/wait_for", &a); e != nil {
			if e.Code == pack.SchemaMismatch {
				e.Code = pack.Timeout
			}
			return e
		}
	}
	if in.NetworkIdle == nil || *in.NetworkIdle {
		idle, err := w.t.idle(ctx, idleTime)
		if err != nil {
			return w.t.failure(err, "")
		}
		out.Idle = idle
	}
	return w.t.failure(pause(ctx, time.Duration(in.WaitMS)*time.Millisecond), "")
}

// fields reads the fields, in the order of their names.
func (w *work) fields(ctx context.Context, in *SPAInput, out *SPAOutput) *pack.Error {
	for _, name := range slices.Sorted(maps.Keys(in.Fields)) {
		f := in.Fields[name]
		js := `((all, limit) => all.slice(0, limit).map(e => ` + content(f.Format, f.Attribute) + `).filter(v => v !== null))([...document.querySelectorAll(` + literal(f.Selector) + `)], `
		limit := 1
		if f.All {
			limit = maxItems
		}
		values, err := run(ctx, w.t, chromedp.Evaluate[[]string](fmt.Sprintf(`%s%d)`, js, limit)))
		if err != nil {
			return w.t.failure(err, "/fields/"+escape(name))
		}
		if len(values) == 0 {
			out.Missing = append(out.Missing, name)
			continue
		}
		for i := range values {
			text, cut := w.bound(values[i])
			values[i], out.Truncated = text, out.Truncated || cut
		}
		out.Data[name] = values[0]
		if f.All {
			out.Data[name] = values
		}
	}
	return nil
}

// formats adds the page to the output in each requested format.
func (w *work) formats(ctx context.Context, in *SPAInput, out *SPAOutput) *pack.Error {
	if len(in.Formats) == 0 {
		return nil
	}
	source, err := run(ctx, w.t, chromedp.Evaluate[string](`document.documentElement.outerHTML`))
	if err != nil {
		return w.t.failure(err, "/formats")
	}
	if len(source) > maxSource {
		return pointed(pack.Fail(pack.ResourceExhausted, "the page has more than %d bytes", maxSource), "/formats")
	}
	page, err := web.Rendered(source, out.URL)
	if err != nil {
		return pointed(pack.Fail(pack.HandlerFailed, "%v", err), "/formats")
	}
	for _, format := range in.Formats {
		switch format {
		case "text":
			text, err := run(ctx, w.t, chromedp.Evaluate[string](`document.body ? document.body.innerText : ""`))
			if err != nil {
				return w.t.failure(err, "/formats")
			}
			out.Text = out.limited(text)
		case "markdown":
			out.addMarkdown(&page)
		case "html":
			out.HTML = out.limited(source)
		case "links":
			out.Links = page.Links
		}
	}
	return nil
}

// limited returns the first maxText bytes of a format, and records whether it is longer.
func (o *SPAOutput) limited(s string) *string {
	cut := clip(s, maxText)
	o.Truncated = o.Truncated || len(cut) < len(s)
	return &cut
}

// addMarkdown adds the Markdown of a page, which may be truncated already.
func (o *SPAOutput) addMarkdown(page *web.ScrapeOutput) {
	o.Markdown = o.limited(page.Markdown)
	o.Truncated = o.Truncated || page.Truncated
}

// escape returns a name as a token of a JSON pointer (RFC 6901).
func escape(name string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(name) }
