package manual

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Pages returns the manual pages of the commands that Walk visits, in the format of man(7), by file
// name.
func Pages(root *cobra.Command) map[string][]byte {
	pages := map[string][]byte{}
	Walk(root, func(cmd *cobra.Command) { pages[pageName(cmd)+".1"] = page(cmd) })
	return pages
}

// pageName returns the name of a command's page, without the section number.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// page returns the manual page of a command.
func page(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"binnacle\" \"Binnacle manual\"\n.nh\n.ad l\n", roff(strings.ToUpper(pageName(cmd))))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(cmd)), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n[\\fIflags\\fR]\n", roff(use(cmd)))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", paragraphs(description(cmd)))
	options(&b, "OPTIONS", Flags(cmd))
	if cmd.HasParent() {
		options(&b, "OPTIONS OF EVERY COMMAND", Flags(cmd.Root()))
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(unindent(cmd.Example)))
	}
	seeAlso(&b, cmd)
	return b.Bytes()
}

// options writes a section that lists flags. It writes nothing if there are none.
func options(b *bytes.Buffer, heading string, flags []*pflag.Flag) {
	if len(flags) == 0 {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", heading)
	for _, f := range flags {
		flag, text := spelling(f)
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(flag), roff(text))
	}
}

// seeAlso writes references to the pages of a command's parent and of its subcommands that are not
// hidden, if there are any.
func seeAlso(b *bytes.Buffer, cmd *cobra.Command) {
	var names []string
	if cmd.HasParent() {
		names = append(names, pageName(cmd.Parent()))
	}
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, pageName(sub))
		}
	}
	var refs []string
	for _, name := range names {
		refs = append(refs, `\fB`+roff(name)+`\fR(1)`)
	}
	if len(refs) > 0 {
		fmt.Fprintf(b, ".SH SEE ALSO\n%s\n", strings.Join(refs, ",\n"))
	}
}

// paragraphs returns text escaped by roff, with its empty lines replaced by requests for
// a new paragraph.
func paragraphs(text string) string { return strings.ReplaceAll(roff(text), "\n\n", "\n.PP\n") }

// roff escapes text so that roff prints it unchanged: backslashes, hyphens, characters
// outside ASCII, and lines that begin with a dot or an apostrophe.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		line = ascii(line)
		lines[i] = line
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// ascii replaces characters outside ASCII by groff's names for them.
func ascii(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}
