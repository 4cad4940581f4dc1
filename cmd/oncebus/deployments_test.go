//go:build unix

package main_test

import (
	"debug/elf"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/kafkatest"
)

// These tests run without a container engine. They check that the files of deployments/ agree with the program, with each
// other and with the tree.

const deployments = "../../deployments"

// compose is the part of compose.yaml that the tests check.
type compose struct {
	Services map[string]struct {
		Image       string
		Build       struct{ Context, Dockerfile string }
		DependsOn   []string `yaml:"depends_on"`
		Environment map[string]string
		Volumes     []string
		Ports       []string
		StopGrace   time.Duration `yaml:"stop_grace_period"`
	}
	Volumes map[string]any
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(deployments, path))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func readCompose(t *testing.T) compose {
	t.Helper()
	var c compose
	readYAML(t, "compose.yaml", &c)
	for _, name := range []string{"kafka", "oncebus", "ingress", "prometheus", "grafana"} {
		if _, ok := c.Services[name]; !ok {
			t.Fatalf("compose.yaml has no service %s", name)
		}
	}
	return c
}

// TestComposeMounts: every mount is an existing file or a declared volume, and every service in depends_on exists.
func TestComposeMounts(t *testing.T) {
	c := readCompose(t)
	used := map[string]bool{}
	for name, service := range c.Services {
		for _, mount := range service.Volumes {
			source, _, ok := strings.Cut(mount, ":")
			if !ok {
				t.Errorf("service %s: mount %q has no target", name, mount)
			}
			if !strings.HasPrefix(source, ".") {
				used[source] = true
				if _, declared := c.Volumes[source]; !declared {
					t.Errorf("service %s mounts volume %s, which is not declared", name, source)
				}
				continue
			}
			if info, err := os.Stat(filepath.Join(deployments, source)); err != nil || !info.Mode().IsRegular() {
				t.Errorf("service %s mounts %s, which is not a file: %v", name, source, err)
			}
		}
		for _, other := range service.DependsOn {
			if _, ok := c.Services[other]; !ok {
				t.Errorf("service %s depends on %s, which does not exist", name, other)
			}
		}
	}
	for volume := range c.Volumes {
		if !used[volume] {
			t.Errorf("volume %s is used by no service", volume)
		}
	}
	dockerfile := filepath.Join(deployments, c.Services["oncebus"].Build.Context, c.Services["oncebus"].Build.Dockerfile)
	if _, err := os.Stat(dockerfile); err != nil {
		t.Errorf("service oncebus is built from %s: %v", dockerfile, err)
	}
}

// TestComposeSettings: the settings in compose.yaml and the Dockerfile are known and valid together, and match the broker's
// listener, the mounted routes, the published and scraped ports, and the stop timeout.
func TestComposeSettings(t *testing.T) {
	c := readCompose(t)
	for _, name := range []string{"oncebus", "ingress"} {
		t.Run(name, func(t *testing.T) { checkComposeService(t, c, name) })
	}
	if want := "apache/kafka:" + kafkatest.KafkaVersion; c.Services["kafka"].Image != want {
		t.Errorf("compose.yaml runs %s, the tests ran with %s", c.Services["kafka"].Image, want)
	}
}

// secretsOf returns the names of the secrets in a routes file.
func secretsOf(routes *rules.Routes) (secrets []string) {
	for _, r := range routes.Routes {
		if r.HTTP == nil {
			continue
		}
		for _, s := range []*rules.Signature{&r.HTTP.Signature, r.HTTP.Outcomes} {
			if s != nil && s.Secret != "" {
				secrets = append(secrets, s.Secret)
			}
		}
	}
	return secrets
}

func checkComposeService(t *testing.T, c compose, name string) {
	t.Helper()
	service := c.Services[name]
	environ := dockerfileEnviron(t)
	for name, value := range service.Environment {
		environ = append(environ, name+"="+value)
		if !strings.HasPrefix(name, settings.Prefix) {
			t.Errorf("%s is not a setting", name)
		}
	}
	s, err := settings.Parse(environ)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Processor.Validate(); err != nil {
		t.Error(err)
	}
	mounted := func(target string) string {
		for _, mount := range service.Volumes {
			if parts := strings.Split(mount, ":"); len(parts) > 1 && parts[1] == target {
				return parts[0]
			}
		}
		t.Errorf("nothing is mounted at %s", target)
		return ""
	}
	path := filepath.Join(deployments, mounted(s.Routes))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	routes, err := rules.ParseRoutes(path, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range settings.Unknown(environ, routes) {
		t.Errorf("%s is not a setting", name)
	}
	listeners := c.Services["kafka"].Environment["KAFKA_ADVERTISED_LISTENERS"]
	for _, broker := range s.Processor.Brokers {
		if !strings.Contains(listeners, "://"+broker) {
			t.Errorf("ONCEBUS_BROKERS has %s, Kafka advertises %s", broker, listeners)
		}
	}
	stop, published := s.Processor.StopTimeout, s.AdminAddr
	if s.Ingress.Addr == "" {
		mounted(s.Processor.StateDir)
	} else {
		stop, published = stop+s.Ingress.Drain, s.Ingress.Addr
		for _, secret := range secretsOf(routes) {
			if _, ok := service.Environment["ONCEBUS_INGRESS_SECRET_"+secret]; !ok {
				t.Errorf("secret %s is not set", secret)
			}
		}
	}
	if service.StopGrace <= stop {
		t.Errorf("stop_grace_period is %v, a stop may take %v", service.StopGrace, stop)
	}
	_, port, err := net.SplitHostPort(published)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(service.Ports, func(p string) bool { return strings.HasSuffix(p, ":"+port) }) {
		t.Errorf("port %s is not among the published %v", port, service.Ports)
	}
}

// TestPrometheusScrapesCompose: Prometheus scrapes the service of compose.yaml at its port.
func TestPrometheusScrapesCompose(t *testing.T) {
	var p struct {
		ScrapeConfigs []struct {
			StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "prometheus/prometheus.yml", &p)
	_, port, err := net.SplitHostPort(readCompose(t).Services["oncebus"].Environment["ONCEBUS_ADMIN_ADDR"])
	if err != nil {
		t.Fatal(err)
	}
	for _, scrape := range p.ScrapeConfigs {
		for _, static := range scrape.StaticConfigs {
			if slices.Contains(static.Targets, "oncebus:"+port) {
				return
			}
		}
	}
	t.Errorf("no target oncebus:%s in %+v", port, p)
}

// TestGrafanaShowsDashboard: the Grafana of compose.yaml gets its data from the Prometheus there, finds the dashboard where its
// provisioning looks, and is open to this machine's viewers alone.
func TestGrafanaShowsDashboard(t *testing.T) {
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	var dashboards struct {
		Providers []struct {
			Type    string
			Options struct{ Path string }
		}
	}
	readYAML(t, "grafana/datasources.yml", &sources)
	readYAML(t, "grafana/dashboards.yml", &dashboards)
	c := readCompose(t)
	if len(sources.Datasources) != 1 || len(dashboards.Providers) != 1 {
		t.Fatalf("want one data source and one provider, have %+v and %+v", sources, dashboards)
	}
	source, provider, grafana := sources.Datasources[0], dashboards.Providers[0], c.Services["grafana"]
	_, port, _ := strings.Cut(c.Services["prometheus"].Ports[0], "127.0.0.1:")
	_, port, _ = strings.Cut(port, ":")
	if want := "http://prometheus:" + port; source.Type != "prometheus" || source.URL != want {
		t.Errorf("data source %+v, want %s", source, want)
	}
	for _, want := range []string{
		"./grafana/dashboard.json:" + provider.Options.Path + "/oncebus.json:ro",
		"./grafana/datasources.yml:/etc/grafana/provisioning/datasources/oncebus.yml:ro",
		"./grafana/dashboards.yml:/etc/grafana/provisioning/dashboards/oncebus.yml:ro",
	} {
		if !slices.Contains(grafana.Volumes, want) {
			t.Errorf("grafana does not mount %s", want)
		}
	}
	if home := grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]; provider.Type != "file" || home != provider.Options.Path+"/oncebus.json" {
		t.Errorf("the first page is %s, the dashboard is in %+v", home, provider)
	}
	if role := grafana.Environment["GF_AUTH_ANONYMOUS_ORG_ROLE"]; role != "Viewer" || len(grafana.Ports) != 1 || !strings.HasPrefix(grafana.Ports[0], "127.0.0.1:") {
		t.Errorf("anyone is %s at %v, want a Viewer on loopback", role, grafana.Ports)
	}
}

func readDockerfile(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(deployments, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\\\n", " ")
}

// dockerfileEnviron returns the variables that the ENV lines of the image set.
func dockerfileEnviron(t *testing.T) []string {
	t.Helper()
	var environ []string
	for _, line := range regexp.MustCompile(`(?m)^ENV (.*)$`).FindAllStringSubmatch(readDockerfile(t), -1) {
		environ = append(environ, strings.Fields(line[1])...)
	}
	if len(environ) == 0 {
		t.Fatal("the Dockerfile has no ENV")
	}
	return environ
}

// TestDockerfile: the Dockerfile's build command makes a static binary of this
// program. The last stage is empty and has no loader. The image runs the binary as an
// unprivileged user, with its state in a volume that this user owns.
func TestDockerfile(t *testing.T) {
	text := readDockerfile(t)
	build := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0) go (build .*) -o (\S+) (\./\S+)$`).FindStringSubmatch(text)
	if build == nil {
		t.Fatal("no line RUN CGO_ENABLED=0 go build ... -o PATH PACKAGE")
	}
	s, err := settings.Parse(dockerfileEnviron(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"FROM scratch",
		"COPY --from=build " + build[3] + " /oncebus",
		"COPY --from=build --chown=65532:65532 " + filepath.Dir(build[3]) + "/state " + s.Processor.StateDir,
		"USER 65532:65532",
		"VOLUME " + s.Processor.StateDir,
		`ENTRYPOINT ["/oncebus"]`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	if runtime.GOOS != "linux" {
		t.Skip("skipped: only on Linux is the binary an ELF file")
	}
	out := filepath.Join(t.TempDir(), "oncebus")
	args := append(strings.Fields(build[2]), "-buildvcs=false", "-o", out, build[4])
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = filepath.Join("..", ".."), append(os.Environ(), build[1])
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, b)
	}
	f, err := elf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, segment := range f.Progs {
		if segment.Type == elf.PT_INTERP {
			t.Error("the binary needs a loader: it is not static")
		}
	}
	if libs, err := f.ImportedLibraries(); err == nil && len(libs) > 0 {
		t.Errorf("the binary needs %v: it is not static", libs)
	}
	cmd = exec.CommandContext(t.Context(), out, "version")
	if b, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(b), "oncebus ") {
		t.Errorf("oncebus version: %q, %v", b, err)
	}
}

// alertTests are the files with the cases of alerts.yml.
var alertTests = []string{"alerts_test.yml", "alerts_week_test.yml"}

// TestEveryAlertHasBothCases: for each alert there is a case in which it fires, and one in which it does not.
func TestEveryAlertHasBothCases(t *testing.T) {
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, file := range alertTests {
		var cases struct {
			Tests []struct {
				Alerts []struct {
					Name     string `yaml:"alertname"`
					Expected []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			}
		}
		readYAML(t, "prometheus/"+file, &cases)
		for _, test := range cases.Tests {
			for _, a := range test.Alerts {
				if len(a.Expected) > 0 {
					fires[a.Name] = true
				} else {
					silent[a.Name] = true
				}
			}
		}
	}
	rules := alertRules(t)
	for _, rule := range rules {
		if !fires[rule.Alert] || !silent[rule.Alert] {
			t.Errorf("alert %s has a case that fires: %v, and one that does not: %v", rule.Alert, fires[rule.Alert], silent[rule.Alert])
		}
		delete(fires, rule.Alert)
		delete(silent, rule.Alert)
	}
	if len(rules) == 0 || len(fires)+len(silent) > 0 {
		t.Errorf("%d alerts; cases of alerts that do not exist: %v %v", len(rules), fires, silent)
	}
}

// TestRealAlertRules runs the cases of alertTests. TestPages finds metrics that do
// not exist.
func TestRealAlertRules(t *testing.T) {
	dir := filepath.Join(deployments, "prometheus")
	if _, err := exec.LookPath("promtool"); err != nil {
		kafkatest.Lack(t, "promtool is not installed: the alert rules are not tested (.ci/run fetches it)")
	}
	for _, args := range [][]string{append([]string{"test", "rules"}, alertTests...), {"check", "config", "prometheus.yml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
