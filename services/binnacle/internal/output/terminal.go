package output

import (
	"os"

	"golang.org/x/term"
)

// Terminal reports whether v is a file that is connected to a terminal.
func Terminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Style adds colour to text. The zero value adds none.
type Style struct{ on bool }

// StyleFor returns the style for output to w: colour on a terminal, unless NO_COLOR is
// set (https://no-color.org) or TERM is dumb.
func StyleFor(w any, getenv func(string) string) Style {
	return Style{on: Terminal(w) && coloured(getenv)}
}

// coloured reports whether the environment allows colour.
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
