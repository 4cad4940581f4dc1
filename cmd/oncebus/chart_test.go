//go:build unix

package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/golden"
)

// These tests hold the Helm chart to the program and to itself. make check-deployments holds it to the schemas of Kubernetes;
// TestRealRoll starts what it says.

// chart is the directory of the chart.
const chart = deployments + "/helm/oncebus"

// chartValues are the value files of the tests.
var chartValues = []string{"minimal", "ephemeral", "production"}

// object has the parts of a rendered object that the tests read.
type object struct {
	Kind     string
	Metadata meta
	Spec     struct {
		Replicas            *int
		PodManagementPolicy string
		MinReadySeconds     int
		Template            struct {
			Metadata meta
			Spec     podSpec
		}
		VolumeClaimTemplates []struct{ Metadata meta }
		MaxReplicaCount      int
		MinReplicaCount      int
		Triggers             []struct{ Metadata map[string]string }
		Groups               any
	}
	Data map[string]string
}

type meta struct {
	Name                string
	Labels, Annotations map[string]string
}

type podSpec struct {
	TerminationGracePeriodSeconds int
	AutomountServiceAccountToken  *bool
	SecurityContext               struct {
		RunAsNonRoot                   bool
		RunAsUser, RunAsGroup, FSGroup int
		SeccompProfile                 struct{ Type string }
	}
	Containers []container
	Volumes    []volume
}

type volume struct {
	Name      string
	ConfigMap struct{ Name string }
	Secret    struct{ SecretName string }
	EmptyDir  any
}

type container struct {
	Name, Image   string
	Command, Args []string
	Env           []struct {
		Name, Value string
		ValueFrom   *struct {
			FieldRef struct{ FieldPath string }
		}
	}
	EnvFrom   []any
	Lifecycle struct {
		PreStop struct{ Sleep struct{ Seconds int } }
	}
	StartupProbe, LivenessProbe, ReadinessProbe probe
	SecurityContext                             struct {
		AllowPrivilegeEscalation *bool
		ReadOnlyRootFilesystem   bool
		Capabilities             struct{ Drop []string }
	}
	VolumeMounts []mount
}

type mount struct {
	Name, MountPath, SubPath string
	ReadOnly                 bool
}

type probe struct {
	HTTPGet                                         struct{ Path, Port, Scheme string }
	PeriodSeconds, FailureThreshold, TimeoutSeconds int
	InitialDelaySeconds                             int
}

// helmBinary returns the path of helm, or an error that says what it needs.
var helmBinary = sync.OnceValues(func() (string, error) {
	makefile, err := os.ReadFile(filepath.Join(moduleRoot, "Makefile"))
	if err != nil {
		return "", err
	}
	pinned := regexp.MustCompile(`(?m)^HELM := (\S+)$`).FindSubmatch(makefile)
	if pinned == nil {
		return "", fmt.Errorf("the Makefile names no HELM")
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return "", err
	}
	// The first go run puts the program into the build cache, the second prints its path there. With the module cache as the proxy a
	// test downloads nothing.
	path := ""
	for _, run := range []string{"true", "echo"} {
		cmd := exec.Command("go", "run", "-exec", run, string(pinned[1]))
		cmd.Env = append(os.Environ(), "GOPROXY=file://"+strings.TrimSpace(string(cache))+"/cache/download")
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(complaints.Bytes()))
		}
		path = strings.TrimSpace(string(out))
	}
	_, err = os.Stat(path)
	return path, err
})

// helm runs helm template on the chart and returns its output, and the error that it prints.
func helm(t *testing.T, release string, args ...string) (out []byte, complaint string) {
	t.Helper()
	path, err := helmBinary()
	if err != nil {
		kafkatest.Lack(t, "no helm in the module cache: the chart is not rendered; make check-deployments gets it: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), path, append([]string{"template", release, chart, "--namespace", "events", "--kube-version", "1.30"}, args...)...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if out, err = cmd.Output(); err != nil {
		return nil, err.Error() + ": " + complaints.String()
	}
	return out, ""
}

// render returns the objects of the chart.
func render(t *testing.T, args ...string) []object {
	t.Helper()
	return renderAs(t, "oncebus", args...)
}

// renderAs is render for a release of another name.
func renderAs(t *testing.T, release string, args ...string) []object {
	t.Helper()
	out, complaint := helm(t, release, args...)
	if complaint != "" {
		t.Fatalf("helm template %v: %s", args, complaint)
	}
	return parseObjects(t, out)
}

// parseObjects reads the output of helm template.
func parseObjects(t *testing.T, out []byte) (objects []object) {
	t.Helper()
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(string(out), -1) {
		var o object
		convert(t, []byte(document), &o)
		if o.Kind != "" {
			objects = append(objects, o)
		}
	}
	return objects
}

// convert reads YAML as JSON, whose names need no tags.
func convert(t *testing.T, from []byte, into any) {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal(from, &tree); err != nil {
		t.Fatalf("%v in\n%s", err, from)
	}
	b, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatalf("%v in\n%s", err, from)
	}
}

// one returns the only object of a kind, with this name if it is not "".
func one(t *testing.T, objects []object, kind, name string) object {
	t.Helper()
	found := slices.DeleteFunc(slices.Clone(objects), func(o object) bool { return o.Kind != kind || name != "" && o.Metadata.Name != name })
	if len(found) != 1 {
		t.Fatalf("%d objects %s %s, want one", len(found), kind, name)
	}
	return found[0]
}

// valuesFile returns the arguments that name a value file of the tests.
func valuesFile(name string) []string {
	return []string{"--values", filepath.Join(chart, "ci", name+"-values.yaml")}
}

// machine is where the files of a pod are: ConfigMaps and Secrets by name, and directories for volumes.
type machine struct {
	t       *testing.T
	dir     string
	configs map[string]map[string]string
	secrets map[string]map[string]string
}

func newMachine(t *testing.T, objects []object) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), configs: map[string]map[string]string{}, secrets: map[string]map[string]string{}}
	m.apply(objects)
	return m
}

// apply takes over the ConfigMaps of objects.
func (m *machine) apply(objects []object) {
	for _, o := range objects {
		if o.Kind == "ConfigMap" {
			m.configs[o.Metadata.Name] = o.Data
		}
	}
}

// mount makes the directories that a pod mounts, and returns them by the path in the container. A claim keeps its content.
func (m *machine) mount(pod string, spec *podSpec, claims []struct{ Metadata meta }) map[string]string {
	m.t.Helper()
	dirs := map[string]string{}
	for _, mount := range spec.Containers[0].VolumeMounts {
		if mount.SubPath != "" {
			m.t.Errorf("mount %s has a subPath: it would not follow a change", mount.Name)
		}
		dir := filepath.Join(m.dir, pod, mount.Name)
		if slices.ContainsFunc(claims, func(c struct{ Metadata meta }) bool { return c.Metadata.Name == mount.Name }) {
			dir = filepath.Join(m.dir, "claims", mount.Name+"-"+pod)
		} else {
			m.fill(dir, mount.Name, spec.Volumes)
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			m.t.Fatal(err)
		}
		dirs[mount.MountPath] = dir
	}
	return dirs
}

// fill replaces the content of a directory by that of a volume.
func (m *machine) fill(dir, name string, volumes []volume) {
	m.t.Helper()
	i := slices.IndexFunc(volumes, func(v volume) bool { return v.Name == name })
	if i < 0 {
		m.t.Fatalf("nothing is declared for the mount %s", name)
	}
	files := map[string]string{}
	switch v := volumes[i]; {
	case v.ConfigMap.Name != "":
		files = m.configs[v.ConfigMap.Name]
	case v.Secret.SecretName != "":
		files = m.secrets[v.Secret.SecretName]
	case v.EmptyDir == nil:
		m.t.Fatalf("volume %s has no source that the tests know", name)
	}
	if files == nil {
		m.t.Fatalf("volume %s: its ConfigMap or Secret does not exist", name)
	}
	if err := os.RemoveAll(dir); err != nil {
		m.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		m.t.Fatal(err)
	}
	for key, content := range files {
		kafkatest.ReplaceFile(m.t, filepath.Join(dir, key), []byte(content))
	}
}

// environ returns the environment of a pod's container: that of the image, then that of the manifest, with the directories of the
// machine in place of those of the container.
func (m *machine) environ(pod string, c *container, dirs map[string]string) []string {
	m.t.Helper()
	if len(c.EnvFrom) > 0 {
		m.t.Errorf("container %s has envFrom: a Secret would be in the environment", c.Name)
	}
	environ := dockerfileEnviron(m.t)
	seen := map[string]bool{}
	for _, e := range c.Env {
		if seen[e.Name] {
			m.t.Errorf("%s is set twice", e.Name)
		}
		seen[e.Name] = true
		value := e.Value
		if e.ValueFrom != nil {
			if e.ValueFrom.FieldRef.FieldPath != "metadata.name" {
				m.t.Fatalf("%s comes from %+v, want metadata.name", e.Name, *e.ValueFrom)
			}
			value = pod
		}
		for path, dir := range dirs {
			if value == path || strings.HasPrefix(value, path+"/") {
				value = dir + strings.TrimPrefix(value, path)
			}
		}
		environ = append(environ, e.Name+"="+value)
	}
	return environ
}

// secretsOfProduction are the Secrets that ci/production-values.yaml names.
func secretsOfProduction(t *testing.T) map[string]map[string]string {
	t.Helper()
	authority := kafkatest.NewAuthority(t, "chart")
	cert, key := authority.Issue("localhost", time.Now().Add(time.Hour))
	return map[string]map[string]string{
		"kafka-tls":   {"ca.crt": string(authority.PEM()), "user.crt": string(cert), "user.key": string(key)},
		"kafka-user":  {"password": "password-of-the-chart"},
		"keys":        {"key-secret": "secret-of-the-chart"},
		"ingress-tls": {"ca.crt": string(authority.PEM()), "tls.crt": string(cert), "tls.key": string(key)},
		"admin":       {"admin-token": "token-of-the-admin-port"},
		"admin-tls":   {"ca.crt": string(authority.PEM()), "tls.crt": string(cert), "tls.key": string(key)},
		"signals":     {"token": "token-of-the-chart"}, // next-token comes with a rotation
	}
}

// TestRealChartPods: the settings of every pod are known and valid together, its files are mounted, its grace period is longer than a
// stop, and it has no right that it does not need.
func TestRealChartPods(t *testing.T) {
	for _, name := range chartValues {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := render(t, valuesFile(name)...)
			m := newMachine(t, objects)
			m.secrets = secretsOfProduction(t)
			m.configs["small-routes"] = one(t, render(t, valuesFile("minimal")...), "ConfigMap", "").Data
			pods := 0
			for _, o := range objects {
				if o.Kind == "StatefulSet" || o.Kind == "Deployment" {
					checkPod(t, m, &o)
					pods++
				}
			}
			if want := map[string]int{"production": 2}[name]; pods != max(want, 1) {
				t.Errorf("%d kinds of pods", pods)
			}
		})
	}
}

func checkPod(t *testing.T, m *machine, o *object) {
	t.Helper()
	spec := &o.Spec.Template.Spec
	c := &spec.Containers[0]
	dirs := m.mount(o.Metadata.Name+"-0", spec, o.Spec.VolumeClaimTemplates)
	environ := m.environ(o.Metadata.Name+"-0", c, dirs)
	s, err := settings.Parse(environ)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(s.Routes)
	if err != nil {
		t.Fatal(err)
	}
	routes, err := rules.ParseRoutes(s.Routes, text)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range settings.Unknown(environ, routes) {
		t.Errorf("%s: %s is not a setting", o.Kind, name)
	}
	if s.Processor.InstanceID != o.Metadata.Name+"-0" {
		t.Errorf("%s: the instance id is %q, want the pod's name", o.Kind, s.Processor.InstanceID)
	}
	stop := s.Processor.StopTimeout
	switch o.Kind {
	case "StatefulSet":
		checkStateful(t, o, s, dirs)
	case "Deployment":
		stop += s.Ingress.Drain + time.Duration(c.Lifecycle.PreStop.Sleep.Seconds)*time.Second
		for _, secret := range secretsOf(routes) {
			if !slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, "ONCEBUS_INGRESS_SECRET_"+secret+"_FILE=") }) {
				t.Errorf("secret %s is not set", secret)
			}
		}
	}
	if grace := time.Duration(spec.TerminationGracePeriodSeconds) * time.Second; grace < stop+5*time.Second {
		t.Errorf("%s: the grace period is %v, a stop may take %v", o.Kind, grace, stop)
	}
	checkRights(t, o)
}

// checkStateful checks what only a pod with state has.
func checkStateful(t *testing.T, o *object, s settings.Settings, dirs map[string]string) {
	t.Helper()
	image, err := settings.Parse(dockerfileEnviron(t))
	if err != nil {
		t.Fatal(err)
	}
	if dirs[image.Processor.StateDir] == "" || s.Processor.StateDir != dirs[image.Processor.StateDir] {
		t.Errorf("the state is at %s, mounted are %v; the image has it at %s", s.Processor.StateDir, dirs, image.Processor.StateDir)
	}
	if s.Processor.LeaveOnStop || s.Processor.SessionTimeout < time.Minute {
		t.Errorf("LEAVE_ON_STOP=%t with a session of %v: a roll would move tasks", s.Processor.LeaveOnStop, s.Processor.SessionTimeout)
	}
	if s.Processor.Workers == 0 {
		t.Error("a worker for each core: a pod on another node would be another member")
	}
	if o.Spec.Replicas != nil && *o.Spec.Replicas > int(s.Processor.Partitions) {
		t.Errorf("%d pods for %d partitions", *o.Spec.Replicas, s.Processor.Partitions)
	}
}

// checkRights checks the security context and the probes of a pod.
func checkRights(t *testing.T, o *object) {
	t.Helper()
	spec := o.Spec.Template.Spec
	c := spec.Containers[0]
	if user := fmt.Sprintf("USER %d:%d\n", spec.SecurityContext.RunAsUser, spec.SecurityContext.RunAsGroup); !strings.Contains(readDockerfile(t), user) {
		t.Errorf("%s: the Dockerfile does not say %s", o.Kind, user)
	}
	if p := spec.SecurityContext; !p.RunAsNonRoot || p.FSGroup != p.RunAsGroup || p.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("%s: security context %+v", o.Kind, p)
	}
	if p := c.SecurityContext; p.AllowPrivilegeEscalation == nil || *p.AllowPrivilegeEscalation || !p.ReadOnlyRootFilesystem || !slices.Equal(p.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("%s: security context %+v", o.Kind, p)
	}
	if token := spec.AutomountServiceAccountToken; token == nil || *token {
		t.Errorf("%s: the token of the service account is mounted", o.Kind)
	}
	for _, want := range []struct {
		path string
		probe
	}{{"/healthz", c.StartupProbe}, {"/healthz", c.LivenessProbe}, {"/readyz", c.ReadinessProbe}} {
		p := want.probe
		if tls := slices.ContainsFunc(c.VolumeMounts, func(m mount) bool { return m.Name == "admin-tls" }); tls != (p.HTTPGet.Scheme == "HTTPS") {
			t.Errorf("%s: TLS is %t, a probe is %+v", o.Kind, tls, p)
		}
		if p.HTTPGet.Path != want.path || p.HTTPGet.Port != "admin" || p.PeriodSeconds == 0 || p.FailureThreshold == 0 || p.TimeoutSeconds == 0 {
			t.Errorf("%s: a probe of %s is %+v", o.Kind, want.path, p)
		}
	}
	for _, mount := range c.VolumeMounts {
		if mount.ReadOnly == (mount.MountPath == "/var/lib/oncebus") {
			t.Errorf("%s: mount %s has readOnly %t", o.Kind, mount.MountPath, mount.ReadOnly)
		}
	}
}

// TestRealChartRefuses: values that Kubernetes or oncebus would refuse later, or not at all, fail with a reason.
func TestRealChartRefuses(t *testing.T) {
	production := func(more ...string) []string { return append(valuesFile("production"), more...) }
	minimal := func(more ...string) []string { return append(valuesFile("minimal"), more...) }
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "kafka.brokers is empty"},
		{minimal("--set", "fullnameOverride=1.2"), "'1.2' does not match pattern"},
		{[]string{"--set", "kafka.brokers={kafka:9092}"}, "set routes.file (--set-file routes.file=routes.yaml) or routes.existingConfigMap"},
		{minimal("--set", "routes.existingConfigMap=other"), "and not both"},
		{minimal("--set", "run.replicas=13"), "run.replicas is 13, more than the 12 partitions"},
		{minimal("--set", "run.replica=3"), "additional properties 'replica' not allowed"},
		{minimal("--set", "replicas=3"), "additional properties 'replicas' not allowed"},
		{minimal("--set", "kafka.sasl.password=secret"), "additional properties 'password' not allowed"},
		{minimal("--set", "run.replicas=three"), "got string, want integer"},
		{minimal("--set", "run.probes.readiness.path=/"), "additional properties 'path' not allowed"},
		{minimal("--set", "run.sessionTimeoutSeconds=5"), "minimum: got 5, want 6"},
		{minimal("--set", "kafka.brokers={kafka}"), "'kafka' does not match pattern"},
		{minimal("--set", "settings.COMMIT_INTERVAL=1s"), "invalid propertyName 'COMMIT_INTERVAL'"},
		{minimal("--set", "settings.ONCEBUS_KEY_SECRET=secret-in-the-values"), "invalid propertyName 'ONCEBUS_KEY_SECRET'"},
		{minimal("--set", "settings.OTEL_EXPORTER_OTLP_HEADERS=api-key=secret"), "invalid propertyName 'OTEL_EXPORTER_OTLP_HEADERS'"},
		{minimal("--set", "settings.ONCEBUS_INSTANCE_ID=one"), "invalid propertyName 'ONCEBUS_INSTANCE_ID'"},
		{minimal("--set", "kafka.sasl.mechanism=PLAIN"), "kafka.sasl.existingSecret names no Secret"},
		{minimal("--set", "kafka.sasl.mechanism=PLAIN,kafka.sasl.existingSecret=s"), "kafka.sasl.username is empty"},
		{minimal("--set", "kafka.tls.caKey=ca.crt"), "no existingSecret"},
		{production("--set", "kafka.tls.keyKey="), "certKey and keyKey are set together"},
		{production("--set", "ingress.tls.existingSecret="), "ingress.tls.clientCAKey is set"},
		{production("--set", "admin.tls.existingSecret="), "admin.tls.clientCAKey is set"},
		{production("--set", "serviceMonitor.tlsConfig=null"), "serviceMonitor.tlsConfig is empty"},
		{production("--set", "keda.maxReplicas=37"), "keda.maxReplicas is 37, more than the 36 partitions"},
		{production("--set", "keda.maxReplicas=5"), "keda.maxReplicas is 5, less than run.replicas (6)"},
		{production("--set", "keda.serverAddress="), "keda.serverAddress is empty"},
		{production("--set", "run.resources.requests.cpu=null"), "run.resources.requests.cpu, which is not set"},
		{production("--set", "keda.threshold=0"), "exclusiveMinimum"},
		{production("--set", "serviceMonitor.enabled=false"), "keda.query is empty"},
		{production("--set", "networkPolicy.brokers=null"), "networkPolicy.brokers is empty"},
	} {
		t.Run(strings.Join(tt.args[max(0, len(tt.args)-1):], ""), func(t *testing.T) {
			t.Parallel()
			if _, complaint := helm(t, "oncebus", tt.args...); !strings.Contains(complaint, tt.want) {
				t.Errorf("complaint %q, want %q", complaint, tt.want)
			}
		})
	}
}

// valueSchema is the part of values.schema.json that the tests read.
type valueSchema struct {
	Ref           string                 `json:"$ref"`
	Properties    map[string]valueSchema `json:"properties"`
	Additional    json.RawMessage        `json:"additionalProperties"`
	PropertyNames struct {
		Pattern string                   `json:"pattern"`
		Not     struct{ Pattern string } `json:"not"`
	} `json:"propertyNames"`
	Defs map[string]valueSchema `json:"$defs"`
}

func readValueSchema(t *testing.T) valueSchema {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s valueSchema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRealChartReachesEverySetting: a setting is set by the chart, or may be one of the values settings. A secret is only a file.
func TestRealChartReachesEverySetting(t *testing.T) {
	schema := readValueSchema(t).Properties["settings"].PropertyNames
	allowed, refused := regexp.MustCompile(schema.Pattern), regexp.MustCompile(schema.Not.Pattern)
	oauth := valuesFile("production")
	oauth = append(oauth, "--set", "kafka.sasl.mechanism=OAUTHBEARER")
	own := map[string]bool{}
	for _, args := range [][]string{
		valuesFile("production"), oauth,
		append(slices.Clone(oauth), "--set", "kafka.sasl.oauth.tokenURL=https://token,kafka.sasl.oauth.clientID=id,kafka.sasl.oauth.scopes=kafka"),
	} {
		for _, o := range render(t, args...) {
			for _, c := range o.Spec.Template.Spec.Containers {
				for _, e := range c.Env {
					own[e.Name] = true
				}
			}
		}
	}
	inValues := []string{"ONCEBUS_COMMIT_INTERVAL", "ONCEBUS_DISK_MIN_FREE_PERCENT", "OTEL_EXPORTER_OTLP_ENDPOINT"} // of ci/production-values.yaml
	for name := range own {
		if !refused.MatchString(name) && !slices.Contains(inValues, name) {
			t.Errorf("%s is set by the chart, and settings may set it a second time", name)
		}
	}
	for _, s := range settings.All() {
		name := strings.Replace(s.Name, "SECRET_NAME", "SECRET_SIGNALS", 1)
		if s.Secret {
			name += "_FILE"
			if !refused.MatchString(s.Name) || own[s.Name] {
				t.Errorf("secret %s may be a value", s.Name)
			}
		}
		if reachable := allowed.MatchString(name) && !refused.MatchString(name); !reachable && !own[name] {
			t.Errorf("the chart neither sets %s nor lets settings have it", name)
		}
	}
}

// TestChartValues: values.yaml and the schema have the same keys, each key has a comment, and no object of the schema has others.
func TestChartValues(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(b, &document); err != nil {
		t.Fatal(err)
	}
	schema := readValueSchema(t)
	delete(schema.Properties, "global") // Helm adds it
	checkValues(t, &schema, schema, document.Content[0], "values")
}

func checkValues(t *testing.T, root *valueSchema, s valueSchema, n *yaml.Node, at string) {
	t.Helper()
	free := []string{"values.run.resources", "values.ingress.resources", "values.run.updateStrategy"} // objects of Kubernetes
	if string(s.Additional) != "false" {
		t.Errorf("%s: the schema allows other keys", at)
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		path := at + "." + key.Value
		seen[key.Value] = true
		node, ok := s.Properties[key.Value]
		if !ok {
			t.Errorf("%s is not in the schema", path)
			continue
		}
		if name, ok := strings.CutPrefix(node.Ref, "#/$defs/"); ok {
			node = root.Defs[name]
		}
		if len(node.Properties) > 0 && !slices.Contains(free, path) {
			checkValues(t, root, node, value, path)
		} else if key.HeadComment == "" {
			t.Errorf("%s has no comment", path)
		}
	}
	for key := range s.Properties {
		if !seen[key] {
			t.Errorf("%s.%s is in the schema only", at, key)
		}
	}
}

// TestChartAlerts: Helm reads no file outside of its chart, so the chart has a copy of the alert rules, which make pages writes.
func TestChartAlerts(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(deployments, "prometheus", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(chart, "files", "alerts.yml")
	if golden.Rewrite() {
		if err := os.WriteFile(path, source, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, source) {
		t.Fatalf("%s differs from prometheus/alerts.yml (%v), run make pages", path, err)
	}
}

// TestRealChartAlerts: the PrometheusRule has the alert rules.
func TestRealChartAlerts(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(deployments, "prometheus", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var want struct{ Groups any }
	convert(t, source, &want)
	rule := one(t, render(t, valuesFile("production")...), "PrometheusRule", "")
	if fmt.Sprint(rule.Spec.Groups) != fmt.Sprint(want.Groups) {
		t.Errorf("the PrometheusRule has %v, want %v", rule.Spec.Groups, want.Groups)
	}
}

// TestRealChartScaling: the query of the ScaledObject is of a gauge that oncebus exports, and the pods are at most the partitions. The
// StatefulSet has no number of pods then: an upgrade would undo the scaling.
func TestRealChartScaling(t *testing.T) {
	objects := render(t, valuesFile("production")...)
	scaled := one(t, objects, "ScaledObject", "")
	trigger := scaled.Spec.Triggers[len(scaled.Spec.Triggers)-1]
	query := trigger.Metadata["query"]
	name := regexp.MustCompile(`oncebus_\w+`).FindString(query)
	if !slices.ContainsFunc(exported(t), func(m metric) bool { return m.name == name && m.kind == "gauge" }) {
		t.Errorf("the query %s is of %q, which is no gauge of oncebus", query, name)
	}
	if want := `{namespace="events", service="dedup"}`; !strings.Contains(query, want) {
		t.Errorf("the query %s does not have %s", query, want)
	}
	if scaled.Spec.MinReplicaCount != 6 || scaled.Spec.MaxReplicaCount != 36 {
		t.Errorf("%d to %d pods", scaled.Spec.MinReplicaCount, scaled.Spec.MaxReplicaCount)
	}
	if set := one(t, objects, "StatefulSet", ""); set.Spec.Replicas != nil {
		t.Errorf("the StatefulSet has %d replicas, and an autoscaler", *set.Spec.Replicas)
	}
}

// TestRealChartHasNoSecret: no object of the chart is a Secret, and no file of it names a registry.
func TestRealChartHasNoSecret(t *testing.T) {
	for _, name := range chartValues {
		for _, o := range render(t, valuesFile(name)...) {
			if o.Kind == "Secret" {
				t.Errorf("%s: Secret %s", name, o.Metadata.Name)
			}
		}
	}
	image := one(t, render(t, valuesFile("minimal")...), "StatefulSet", "").Spec.Template.Spec.Containers[0].Image
	if !regexp.MustCompile(`^oncebus:[0-9.]+$`).MatchString(image) {
		t.Errorf("image %s", image)
	}
	used := map[string]bool{}
	err := fs.WalkDir(os.DirFS(filepath.Join(chart, "ci")), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			used[strings.TrimSuffix(path, "-values.yaml")] = true
		}
		return err
	})
	if names := slices.Sorted(maps.Keys(used)); err != nil || !slices.Equal(names, slices.Sorted(slices.Values(chartValues))) {
		t.Errorf("the files of ci/ are %v (%v), the tests read %v", names, err, chartValues)
	}
}

// TestRealChartNames: the names of objects are valid for every name of a release, and a routes file may begin with anything.
func TestRealChartNames(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z][-a-z0-9]{0,61}[a-z0-9]$`)
	routes := "\n  \n    # indented\n" + one(t, render(t, valuesFile("minimal")...), "ConfigMap", "").Data["routes.yaml"]
	file := kafkatest.ReplaceFile(t, filepath.Join(t.TempDir(), "routes.yaml"), []byte(routes))
	for _, release := range []string{"a", "oncebus", "team.orders", "a-release-with-a-name-that-is-as-long-as-helm-allows"} {
		for _, o := range renderAs(t, release, append(valuesFile("production"), "--set", "fullnameOverride=", "--set-file", "routes.file="+file)...) {
			if !valid.MatchString(o.Metadata.Name) {
				t.Errorf("release %s: %s %s", release, o.Kind, o.Metadata.Name)
			}
			if o.Kind == "ConfigMap" && o.Data["routes.yaml"] != routes {
				t.Errorf("release %s: the routes file is %q, want %q", release, o.Data["routes.yaml"], routes)
			}
		}
	}
}

// TestRealChartNumbers: a large number of a values file stays a whole number.
func TestRealChartNumbers(t *testing.T) {
	objects := render(t, append(valuesFile("production"), "--set", "settings.ONCEBUS_MAX_DECOMPRESSED_BYTES=1073741824,keda.threshold=5000000")...)
	for _, e := range one(t, objects, "StatefulSet", "").Spec.Template.Spec.Containers[0].Env {
		if e.Name == "ONCEBUS_MAX_DECOMPRESSED_BYTES" && e.Value != "1073741824" {
			t.Errorf("%s=%s", e.Name, e.Value)
		}
	}
	triggers := one(t, objects, "ScaledObject", "").Spec.Triggers
	if have := triggers[len(triggers)-1].Metadata["threshold"]; have != "5000000" {
		t.Errorf("threshold %s", have)
	}
}

// TestRealPageHelm: helm renders what the commands of the pages install, and the names of their kubectl commands exist.
func TestRealPageHelm(t *testing.T) {
	commands := 0
	for _, p := range pages(t) {
		names := map[string]bool{}
		for _, block := range p.blocks("sh") {
			for _, command := range commandLines(block) {
				if text, ok := strings.CutPrefix(command, "helm upgrade --install "); ok {
					commands++
					path, err := helmBinary()
					if err != nil {
						kafkatest.Lack(t, "no helm in the module cache: the commands of %s are not rendered: %v", p.path, err)
					}
					shell := exec.CommandContext(t.Context(), "bash", "-c", path+" template --kube-version 1.30 "+text)
					shell.Dir = moduleRoot
					out, err := shell.Output()
					if err != nil {
						t.Fatalf("%s: %s: %v", p.path, command, err)
					}
					for _, o := range parseObjects(t, out) {
						names[strings.ToLower(o.Kind)+"/"+o.Metadata.Name] = true
						names[o.Metadata.Name+"-0"] = o.Kind == "StatefulSet"
					}
				}
				if text, ok := strings.CutPrefix(command, "kubectl "); ok {
					found := false
					for _, word := range strings.Fields(text) {
						found = found || names[word]
					}
					if !found {
						t.Errorf("%s: %s names no object that the page installs", p.path, command)
					}
				}
			}
		}
	}
	if commands == 0 {
		t.Error("no page has a helm command")
	}
}

// TestChartVersion: the tag of the image is the newest release of CHANGELOG.md.
func TestChartVersion(t *testing.T) {
	changes, err := os.ReadFile(filepath.Join(moduleRoot, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	released := regexp.MustCompile(`(?m)^## ([0-9]\S*)`).FindSubmatch(changes)
	if released == nil {
		t.Fatal("CHANGELOG.md has no release")
	}
	b, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct{ AppVersion string }
	convert(t, b, &c)
	if c.AppVersion != string(released[1]) {
		t.Errorf("appVersion of Chart.yaml is %s, the newest release is %s", c.AppVersion, released[1])
	}
}
