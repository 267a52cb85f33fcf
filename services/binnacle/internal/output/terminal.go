package output

import (
	"os"

	"golang.org/x/term"
)

// Terminal reports whether v is a file that a person sees or types into.
func Terminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Style colours text. The zero value leaves it as it is.
type Style struct{ on bool }

// StyleFor is the style of what is written to w: colour on a terminal, unless
// NO_COLOR is set (https://no-color.org) or TERM is dumb; none elsewhere.
func StyleFor(w any, getenv func(string) string) Style {
	return Style{on: Terminal(w) && coloured(getenv)}
}

// coloured reports whether the environment permits colour.
func coloured(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// Bold is for headings.
func (s Style) Bold(text string) string { return s.wrap("1", text) }

// Good is for what passed.
func (s Style) Good(text string) string { return s.wrap("32", text) }

// Bad is for what failed.
func (s Style) Bad(text string) string { return s.wrap("31", text) }

func (s Style) wrap(code, text string) string {
	if !s.on {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
