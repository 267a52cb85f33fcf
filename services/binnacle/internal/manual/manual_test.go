package manual

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// sample is a command line with every element that a manual page can contain.
func sample() *cobra.Command {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "tool COMMAND", Short: "Do things", Example: "  tool do it", Run: run}
	root.PersistentFlags().String("addr", "", "`ADDRESS` of it")
	root.AddGroup(&cobra.Group{ID: "g", Title: "Group:"})
	do := &cobra.Command{Use: "do THING…", GroupID: "g", Short: "Do a thing", Long: "Do a thing.\n\n.dots and 'quotes' and a\\b | c_d.", Example: "  tool do it -x\n  tool do 'it'", Run: run}
	do.Flags().IntP("times", "n", 3, "how often, <5")
	do.Flags().Bool("now", false, "at once | never")
	do.Flags().Bool("unlisted", false, "hidden")
	if err := do.Flags().MarkHidden("unlisted"); err != nil {
		panic(err) // the flag is declared above
	}
	do.InitDefaultHelpFlag()
	hidden := &cobra.Command{Use: "hidden", Hidden: true, Run: run}
	do.AddCommand(&cobra.Command{Use: "again", Short: "Do it again", Example: "  tool do again", Run: run}, hidden)
	root.AddCommand(do)
	return root
}

func TestPages(t *testing.T) {
	pages := Pages(sample())
	if len(pages) != 3 {
		t.Fatalf("%d pages", len(pages))
	}
	page := string(pages["tool-do.1"])
	for _, want := range []string{
		".TH TOOL\\-DO 1", "tool\\-do \\- Do a thing\n", ".B tool do THING\\[u2026]\n", ".PP\n\\&.dots", `a\eb`,
		".TP\n.B \\-n, \\-\\-times int\nhow often, <5 (default 3)\n", ".SH OPTIONS OF EVERY COMMAND\n.TP\n.B \\-\\-addr ADDRESS\n",
		".nf\ntool do it \\-x\ntool do 'it'\n.fi\n", `\fBtool\fR(1)`, `\fBtool\-do\-again\fR(1)`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "help") {
		t.Errorf("the flag of every command is in\n%s", page)
	}
	if strings.Contains(page, "hidden") || regexp.MustCompile(`[^\x00-\x7f]`).MatchString(page) {
		t.Errorf("a hidden command or what is not ASCII is in\n%s", page)
	}
	if strings.Contains(string(pages["tool.1"]), "OF EVERY COMMAND") {
		t.Error("the root lists its flags twice")
	}
}

func TestMarkdown(t *testing.T) {
	text := string(Markdown(sample()))
	for _, want := range []string{
		"## Flags of every command\n\n| flag | |\n|---|---|\n| `--addr ADDRESS` | ADDRESS of it |\n", "## Group\n\n### tool do\n\n", "```\ntool do THING…\n```\n",
		"| `-n, --times int` | how often, &lt;5 (default 3) |", `| at once \| never |`, "```sh\ntool do it -x\ntool do 'it'\n```", "#### tool do again\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "hidden") {
		t.Error("a hidden command is listed")
	}
}

func TestReplace(t *testing.T) {
	got, err := Replace([]byte("a\n"+begin+"old\n"+end+"z\n"), []byte("new\n"))
	if err != nil || string(got) != "a\n"+begin+"new\n"+end+"z\n" {
		t.Errorf("%q %v", got, err)
	}
	for _, doc := range []string{"", begin, end, end + begin} {
		if _, err := Replace([]byte(doc), nil); err == nil {
			t.Errorf("%q: no error", doc)
		}
	}
}

// TestAlone checks that the page of a command with neither a parent nor subcommands has no section
// SEE ALSO, and that a control character outside ASCII is written by its name.
func TestAlone(t *testing.T) {
	page := string(Pages(&cobra.Command{Use: "alone", Short: "Be \u0080\u007f"})["alone.1"])
	if strings.Contains(page, "SEE ALSO") || !strings.Contains(page, "Be \\[u0080]\u007f") {
		t.Errorf("%q", page)
	}
}
