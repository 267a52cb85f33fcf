package web

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strings"

	"codeberg.org/readeck/go-readability/v2"
	htmltomarkdown "github.com/JohannesKaufmann/html-to-markdown/v2"
	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"golang.org/x/net/html"
	"golang.org/x/net/html/charset"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// ScrapeInput is the input of web.scrape.
type ScrapeInput struct {
	URL     string `json:"url"`
	Content string `json:"content"` // article or page
}

// ScrapeOutput is the output of web.scrape.
type ScrapeOutput struct {
	URL       string   `json:"url"`
	Status    int      `json:"status"`
	Title     string   `json:"title"`
	Byline    string   `json:"byline"`
	Markdown  string   `json:"markdown"`
	Links     []string `json:"links"`
	Truncated bool     `json:"truncated"`
}

// Limits of the output of web.scrape.
const (
	maxMarkdown = 1 << 20
	maxLinks    = 500
)

// Scrape reads a page and returns its article, or all of it, as Markdown.
func Scrape(ctx context.Context, in ScrapeInput) (ScrapeOutput, error) {
	if err := checkURL(in.URL); err != nil {
		return ScrapeOutput{}, err
	}
	return scrape(ctx, Client(), in)
}

func scrape(ctx context.Context, c *http.Client, in ScrapeInput) (ScrapeOutput, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, in.URL, nil)
	if err != nil {
		return ScrapeOutput{}, pack.Invalid("/url", "%v", err)
	}
	r.Header.Set("User-Agent", "binnacle-web.scrape")
	r.Header.Set("Accept", "text/html,text/plain")
	resp, body, cut, err := Do(c, r, maxBody)
	if err != nil {
		return ScrapeOutput{}, err
	}
	if resp.StatusCode >= 400 {
		return ScrapeOutput{}, pack.Fail(pack.HandlerFailed, "%s responded with status %d", resp.Request.URL.Host, resp.StatusCode)
	}
	out := ScrapeOutput{URL: resp.Request.URL.String(), Status: resp.StatusCode, Links: []string{}, Truncated: cut}
	kind := resp.Header.Get("Content-Type")
	text, err := charset.NewReader(bytes.NewReader(body), kind)
	if err != nil {
		return ScrapeOutput{}, pack.Fail(pack.HandlerFailed, "%s: %v", out.URL, err)
	}
	if strings.HasPrefix(kind, "text/plain") {
		var b bytes.Buffer
		_, err := b.ReadFrom(text)
		out.Markdown = b.String()
		return out, err
	}
	if !strings.Contains(kind, "html") {
		return ScrapeOutput{}, pack.Fail(pack.HandlerFailed, "%s has the type %q, not HTML; http.fetch returns it", out.URL, kind)
	}
	doc, err := html.Parse(text)
	if err != nil {
		return ScrapeOutput{}, pack.Fail(pack.HandlerFailed, "%s: %v", out.URL, err)
	}
	out.Links = links(doc, resp.Request.URL)
	return out, out.convert(doc, resp.Request.URL, in.Content != "page")
}

// Rendered returns the article, or else the whole, of the page at an address as Markdown, and its
// links. source is the HTML after the page's scripts have run. Status is 0.
func Rendered(source, address string) (ScrapeOutput, error) {
	out := ScrapeOutput{URL: address}
	base, err := url.Parse(address)
	if err != nil {
		return out, err
	}
	doc, err := html.Parse(strings.NewReader(source))
	if err != nil {
		return out, err
	}
	out.Links = links(doc, base)
	return out, out.convert(doc, base, true)
}

// convert sets the title, the byline and the Markdown of a document. If the document has no
// article, it is converted as a whole.
func (o *ScrapeOutput) convert(doc *html.Node, base *url.URL, article bool) error {
	node := doc
	if a, err := readability.FromDocument(doc, base); err == nil {
		o.Title, o.Byline = a.Title(), a.Byline()
		if article && a.Node != nil {
			node = a.Node
		}
	}
	md, err := htmltomarkdown.ConvertNode(node, converter.WithDomain(base.Scheme+"://"+base.Host))
	if err != nil {
		return pack.Fail(pack.HandlerFailed, "%s: %v", o.URL, err)
	}
	if len(md) > maxMarkdown {
		md, o.Truncated = md[:maxMarkdown], true
	}
	o.Markdown = strings.ToValidUTF8(string(md), "")
	return nil
}

// links returns the distinct HTTP links of a document as absolute URLs without
// fragments, in the order of the document, but at most maxLinks.
func links(doc *html.Node, base *url.URL) []string {
	out, seen := []string{}, map[string]bool{}
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode || n.Data != "a" {
			continue
		}
		for _, a := range n.Attr {
			u, err := base.Parse(strings.TrimSpace(a.Val))
			if a.Key != "href" || err != nil || u.Scheme != "http" && u.Scheme != "https" {
				continue
			}
			u.Fragment = ""
			if s := u.String(); !seen[s] && len(out) < maxLinks {
				seen[s] = true
				out = append(out, s)
			}
		}
	}
	return out
}
