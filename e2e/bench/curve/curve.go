// Package curve draws the growth curves of the benchmark as SVG pictures.
package curve

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Point is a measured value for one history.
type Point struct {
	Measure  string  `json:"measure"`
	Events   int     `json:"events"`   // length of the history, in events
	Sessions int     `json:"sessions"` // number of sessions in the history
	Unit     string  `json:"unit"`
	Value    float64 `json:"value"` // in Unit
}

// same reports whether two points are of the same measure, history and unit.
func (v *Point) same(w *Point) bool {
	return v.Measure == w.Measure && v.Events == w.Events && v.Sessions == w.Sessions && v.Unit == w.Unit
}

// Merge returns the points of both lists. Of points of the same measure, history and unit, it
// returns the last one of measured, in the place of the first one of recorded.
func Merge(recorded, measured []Point) []Point {
	out := slices.Clone(recorded)
	for _, v := range measured {
		if i := slices.IndexFunc(out, func(w Point) bool { return v.same(&w) }); i >= 0 {
			out[i] = v
		} else {
			out = append(out, v)
		}
	}
	return out
}

// Picture describes a picture of curves over the length of the history or over the number of
// sessions. Both axes are logarithmic.
type Picture struct {
	Title, Unit  string
	Sessions     int      // number of sessions of the points, for curves over the length of the history
	OverSessions bool     // draw curves over the number of sessions, for the history length with the most points
	OneCall      bool     // with OverSessions: each session has one call, so the points are those of all history lengths
	Measures     []string // one curve each; a curve without points is omitted
}

// Size of a picture, its plot area and its text, in pixels.
const (
	width, height = 720, 400
	left, right   = 70, 20
	top, bottom   = 40, 150
	line          = 18
)

var colors = []string{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b"}

// at is a point of a curve, in the units of the axes or as the logarithms of both
// coordinates.
type at struct{ x, y float64 }

// length returns the length of the histories for which there are most points; if several
// lengths have equally many points, it returns the longest.
func (p *Picture) length(all []Point) (events int) {
	n := map[int]int{}
	for _, v := range all {
		if slices.Contains(p.Measures, v.Measure) && v.Unit == p.Unit {
			n[v.Events]++
		}
	}
	for e := range n {
		if n[e] > n[events] || n[e] == n[events] && e > events {
			events = e
		}
	}
	return events
}

// points returns the points of one curve, in ascending order. It omits values that are
// not positive, because the axes are logarithmic. For curves over the number of
// sessions, events is the length of the histories.
func (p *Picture) points(all []Point, measure string, events int) (out []at) {
	for _, v := range all {
		if v.Measure != measure || v.Unit != p.Unit || v.Value <= 0 {
			continue
		}
		switch {
		case !p.OverSessions && v.Sessions == p.Sessions:
			out = append(out, at{float64(v.Events), v.Value})
		case p.OverSessions && (p.OneCall || v.Events == events):
			out = append(out, at{float64(v.Sessions), v.Value})
		}
	}
	slices.SortFunc(out, func(a, b at) int { return cmp.Compare(a.x, b.x) })
	return slices.CompactFunc(out, func(a, b at) bool { return a.x == b.x })
}

// Draw returns the picture of the points as an SVG document. It omits points with a
// value that is not positive, and returns an error if no curve has a point.
func (p *Picture) Draw(all []Point) (string, error) {
	events := p.length(all)
	var curves [][]at
	var low, high at
	found := false
	for _, m := range p.Measures {
		c := p.points(all, m, events)
		for _, v := range c {
			v = at{math.Log10(v.x), math.Log10(v.y)}
			if !found {
				low, high, found = v, v, true
			}
			low, high = at{min(low.x, v.x), min(low.y, v.y)}, at{max(high.x, v.x), max(high.y, v.y)}
		}
		curves = append(curves, c)
	}
	if !found {
		return "", fmt.Errorf("curve: no points for %q", p.Title)
	}
	low, high = at{math.Floor(low.x), math.Floor(low.y)}, at{math.Ceil(high.x), math.Ceil(high.y)}
	high = at{max(high.x, low.x+1), max(high.y, low.y+1)}
	x := func(v float64) float64 { return left + (v-low.x)/(high.x-low.x)*(width-left-right) }
	y := func(v float64) float64 { return height - bottom - (v-low.y)/(high.y-low.y)*(height-top-bottom) }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
	}
	rule := func(x1, y1, x2, y2 float64) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ccc"/>`+"\n", x1, y1, x2, y2)
	}
	text(left, top-16, "start", p.Title+", "+p.Unit)
	for v := low.x; v <= high.x; v++ {
		rule(x(v), top, x(v), height-bottom)
		text(x(v), height-bottom+line, "middle", number(v))
	}
	for v := low.y; v <= high.y; v++ {
		rule(left, y(v), width-right, y(v))
		text(left-8, y(v)+4, "end", number(v))
	}
	axis := fmt.Sprintf("events, %d sessions", p.Sessions)
	if p.OverSessions {
		axis = fmt.Sprintf("sessions, %d events", events)
	}
	if p.OneCall {
		axis = "sessions, one call each"
	}
	text(width-right, height-bottom+2*line, "end", axis)
	n := 0
	for i, c := range curves {
		if len(c) == 0 {
			continue
		}
		color := colors[i%len(colors)]
		var path []string
		for _, v := range c {
			px, py := x(math.Log10(v.x)), y(math.Log10(v.y))
			path = append(path, fmt.Sprintf("%.1f,%.1f", px, py))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%g %s</title></circle>`+"\n", px, py, color, v.y, html.EscapeString(p.Unit))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, " "), color)
		row := float64(height - bottom + 3*line + n*line)
		fmt.Fprintf(&b, `<rect x="%d" y="%.1f" width="14" height="4" fill="%s"/>`+"\n", left, row-6, color)
		text(left+22, row, "start", p.Measures[i])
		n++
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// number returns 10 to the power of v as text.
func number(v float64) string {
	s := fmt.Sprintf("%g", math.Pow(10, v))
	if v < 3 {
		return s
	}
	s = fmt.Sprintf("%.0f", math.Pow(10, v))
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
