"""The files of ``deploy`` are valid, fit together, and start a server; no image is built here."""

import copy
import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import trustme
import yaml
from packaging.requirements import Requirement

from vlmkit_monitor.dashboard import dashboard
from vlmkit_ray.settings import RaySettings
from vlmkit_server.configured import models_of

pytestmark = pytest.mark.posix

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
BASE, FLEET = (DEPLOY / "kubernetes" / each for each in ("base", "fleet"))
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
GUIDE = ROOT / "docs/how-to/deploy.md"
UNIT = DEPLOY / "systemd/vlmkit.service"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
VERSIONS = ("1.30", "1.33", "1.36")  # of Kubernetes
NO_KINDS = {"Kustomization"}  # files of kustomize are read by kubectl alone
KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl here")


def objects():
    """Return the objects of the base by kind."""
    found = [each for path in sorted(BASE.glob("*.yaml")) for each in documents(path.read_text())]
    return {each["kind"]: each for each in found if each["kind"] not in NO_KINDS}


def documents(text):
    return [each for each in yaml.safe_load_all(text) if each]


def built(folder):
    """Return what kustomize makes of a folder."""
    command = [KUBECTL, "kustomize", str(DEPLOY / "kubernetes" / folder)]
    return documents(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def pod_of(found):
    return found["Deployment"]["spec"]["template"]["spec"]


def settings(path):
    return tomllib.loads(path.read_text())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", objects())
def test_each_object_follows_the_schema_of_kubernetes(kind, version):
    kubernetes_validate.validate(objects()[kind], version, strict=True)


PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
NAMED_PORT = {
    "type": "object",
    "required": ["number"],
    "properties": {"number": PORT},
    "additionalProperties": False,
}
POOL = {
    "type": "object",
    "required": ["selector", "targetPorts", "endpointPickerRef"],
    "additionalProperties": False,
    "properties": {
        "selector": {
            "type": "object",
            "required": ["matchLabels"],
            "properties": {"matchLabels": {"additionalProperties": {"type": "string"}}},
            "additionalProperties": False,
        },
        "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": NAMED_PORT},
        "endpointPickerRef": {
            "type": "object",
            "required": ["name"],
            "additionalProperties": False,
            "properties": {
                "group": {"type": "string"},
                "kind": {"type": "string"},
                "name": {"type": "string", "minLength": 1},
                "port": NAMED_PORT,
                "failureMode": {"enum": ["FailOpen", "FailClose"]},
            },
        },
    },
}
"""The ``spec`` of an InferencePool of version 1, as its reference describes it."""


def test_the_inference_pool_follows_its_schema_and_selects_the_pods_of_the_base():
    pool = yaml.safe_load((DEPLOY / "kubernetes/inference_pool.yaml").read_text())
    assert (pool["apiVersion"], pool["kind"]) == (
        "inference.networking.k8s.io/v1",
        "InferencePool",
    )
    jsonschema.validate(pool["spec"], POOL)
    broken = pool["spec"] | {"extensionRef": {"name": "x"}}  # of versions before 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, POOL)
    selector = objects()["Deployment"]["spec"]["selector"]
    assert pool["spec"]["selector"] == selector
    ports = {
        each["name"]: each["containerPort"] for each in pod_of(objects())["containers"][0]["ports"]
    }
    assert pool["spec"]["targetPorts"] == [{"number": ports["https"]}]


def test_the_schema_refuses_a_misspelt_key():
    broken = copy.deepcopy(objects()["Deployment"])
    broken["spec"]["template"]["spec"]["terminationGraceSeconds"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


@needs_kubectl
@pytest.mark.parametrize("folder", ["base", "cuda"])
def test_what_kustomize_builds_follows_the_schemas(folder):
    made = built(folder)
    assert {each["kind"] for each in made} == {*objects(), "ConfigMap"}
    for each in made:
        kubernetes_validate.validate(each, VERSIONS[-1], strict=True)


@needs_kubectl
@pytest.mark.parametrize("version", VERSIONS)
def test_a_fleet_has_workers_that_its_gateways_name_and_reach(version):
    made = built("fleet")
    for each in made:
        kubernetes_validate.validate(each, version, strict=True)
    found = {(each["kind"], each["metadata"]["name"]): each for each in made}
    assert ("HorizontalPodAutoscaler", "vlmkit") not in found
    workers, service = (found[kind, "vlmkit-worker"] for kind in ("StatefulSet", "Service"))
    assert service["spec"]["clusterIP"] == "None"
    assert workers["spec"]["serviceName"] == service["metadata"]["name"]
    hosts = [f"vlmkit-worker-{n}.vlmkit-worker:50051" for n in range(workers["spec"]["replicas"])]
    gateway, worker = (settings(FLEET / each) for each in ("vlmkit.toml", "worker.toml"))
    assert gateway["model"] == f"grpc://{','.join(hosts)}/{worker['model']}"
    labels = workers["spec"]["template"]["metadata"]["labels"]
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "grpc", "containerPort": 50051}]
    allowed = found["NetworkPolicy", "vlmkit"]["spec"]["egress"][-1]
    assert allowed["to"] == [{"podSelector": {"matchLabels": labels}}]
    policy = found["NetworkPolicy", "vlmkit-worker"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    pods = found["Deployment", "vlmkit"]["spec"]["template"]["metadata"]["labels"]
    (entry,) = policy["ingress"]
    assert entry["from"][0]["podSelector"]["matchLabels"].items() <= pods.items()


@needs_kubectl
def test_a_worker_differs_from_the_server_in_what_it_runs_alone():
    found = {(each["kind"], each["metadata"]["name"]): each for each in built("fleet")}
    worker = found["StatefulSet", "vlmkit-worker"]["spec"]["template"]["spec"]
    server = pod_of(objects())
    assert worker["securityContext"] == server["securityContext"]
    (mine,), (other,) = worker["containers"], server["containers"]
    assert {each: mine[each] for each in ("image", "resources", "securityContext")} == {
        each: other[each] for each in ("image", "resources", "securityContext")
    }
    drain_s = settings(FLEET / "worker.toml")["worker"]["drain_timeout_s"]
    assert worker["terminationGracePeriodSeconds"] >= drain_s + 5
    mounts = {mount["mountPath"] for mount in mine["volumeMounts"]}
    assert {"/var/lib/vlmkit", "/var/cache/vlmkit", "/tmp", "/etc/vlmkit/worker"} <= mounts


def test_a_gateway_and_a_worker_run_with_the_config_of_the_fleet(tmp_path):
    worker, gateway = (tmp_path / each for each in ("worker", "gateway"))
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    for folder in (worker, gateway):
        (folder / "worker").mkdir(parents=True)
        (folder / "worker/secret").write_text("s" * 40)
        authority.cert_pem.write_to_path(folder / "worker/ca.crt")
    certificate.private_key_pem.write_to_path(worker / "worker/tls.key")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(worker / "worker/tls.crt", append=True)
    text = (FLEET / "worker.toml").read_text().replace("/etc/vlmkit", str(worker))
    (worker / "vlmkit.toml").write_text(text)
    command = [sys.executable, "-m", "vlmkit", "worker", "--config", "vlmkit.toml"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], cwd=worker, stderr=subprocess.PIPE, text=True
    ) as started:
        try:
            lines = iter(started.stderr.readline, "")
            ready = next(
                filter(None, (re.search(r"grpc://127.0.0.1:(\d+)", each) for each in lines))
            )
            text = (FLEET / "vlmkit.toml").read_text()
            hosts = f"localhost:{ready[1]},localhost:1"  # the second one is not there yet
            text = re.sub("grpc://[^/]+", f"grpc://{hosts}", text)
            text = text.replace("[runner]", "[runner]\nstart_timeout_s = 10")
            with pod(gateway, text) as (api, _, trust):
                assert shown(f"{api}/v1/models", trust)[0] == 401
        finally:
            started.terminate()
        assert started.wait(300) == 0


@needs_kubectl
def test_kustomize_changes_no_selector():
    made = {each["kind"]: each for each in built("base")}
    policy = objects()["NetworkPolicy"]["spec"]
    assert made["NetworkPolicy"]["spec"] == policy
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selected = [
        made["Deployment"]["spec"]["selector"]["matchLabels"],
        made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        made["Service"]["spec"]["selector"],
        policy["podSelector"]["matchLabels"],
    ]
    assert all(each and each.items() <= labels.items() for each in selected)


@needs_kubectl
def test_pods_with_gpus_differ_in_image_memory_gpus_and_plugins_alone():
    on_cpus, on_gpus = (pod_of({each["kind"]: each for each in built(f)}) for f in ("base", "cuda"))
    (cpu,), (gpu,) = on_cpus["containers"], on_gpus["containers"]
    assert gpu["image"] == "vlmkit:cuda"
    assert gpu["resources"]["limits"]["nvidia.com/gpu"] == 1
    (variable,) = gpu["env"]
    assert variable["name"] == "VLMKIT_PLUGINS__ONLY"
    plugins = settings(BASE / "vlmkit.toml")["plugins"]["only"]
    assert json.loads(variable["value"]) == [*plugins, "vlmkit-torch"]
    same = {"image", "resources", "env"}
    assert {k: v for k, v in cpu.items() if k not in same} == {
        k: v for k, v in gpu.items() if k not in same
    }


def test_probes_use_the_health_port_and_readiness_is_not_liveness():
    (container,) = pod_of(objects())["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    server = settings(BASE / "vlmkit.toml")["server"]
    assert ports == {"https": 8000, "health": server["health_port"]}
    probes = {
        name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
    }
    assert probes == {
        "startup": {"path": "/readyz", "port": "health"},
        "readiness": {"path": "/readyz", "port": "health"},
        "liveness": {"path": "/healthz", "port": "health"},
    }
    annotations = objects()["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(server["health_port"])
    assert server["health_metrics"]


def test_nothing_kills_a_server_before_its_drain_is_over():
    pod = pod_of(objects())
    (container,) = pod["containers"]
    command, wait_s = container["lifecycle"]["preStop"]["exec"]["command"]
    drain_s = settings(BASE / "vlmkit.toml")["server"]["drain_timeout_s"]
    assert command == "sleep"
    assert pod["terminationGracePeriodSeconds"] >= int(wait_s) + drain_s + 5

    grace = COMPOSE["services"]["vlmkit"]["stop_grace_period"]
    assert (
        int(grace.removesuffix("s"))
        >= settings(DEPLOY / "vlmkit.toml")["server"]["drain_timeout_s"] + 5
    )


def test_the_pod_follows_the_restricted_pod_security_standard():
    pod = pod_of(objects())
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    allowed = {"configMap", "emptyDir", "secret"}
    assert {key for volume in pod["volumes"] for key in volume if key != "name"} == allowed


def test_everything_runs_as_the_user_of_the_image():
    (user,) = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    context = pod_of(objects())["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == tuple(map(int, user))
    assert context["fsGroup"] == int(user[1])


def test_a_pod_mounts_each_of_its_volumes_and_every_file_that_its_config_names():
    pod = pod_of(objects())
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    server = settings(BASE / "vlmkit.toml")["server"]
    named = [server["keys_file"], server["tls_certificate"], server["tls_private_key"]]
    read_only = (mounts["keys"], mounts["tls"])
    assert all(str(Path(path).parent) in read_only for path in named)
    written = re.search(r"^VOLUME (\[.*\])$", DOCKERFILE, re.MULTILINE)[1]
    assert {*json.loads(written), "/tmp"} <= set(mounts.values())


def test_the_autoscaler_keeps_more_pods_than_a_disruption_may_take():
    found = objects()
    least = found["HorizontalPodAutoscaler"]["spec"]["minReplicas"]
    assert least > found["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    assert "replicas" not in found["Deployment"]["spec"]


def autoscaling_metrics():
    """Return the names of metrics of pods, and the queries that provide them."""
    wanted = [
        each["pods"]["metric"]["name"]
        for each in objects()["HorizontalPodAutoscaler"]["spec"]["metrics"]
    ]
    rules = yaml.safe_load((DEPLOY / "kubernetes/adapter_rules.yaml").read_text())["rules"]
    queries = {}
    for rule in rules:
        series = rule["seriesQuery"].partition("{")[0]
        queries[rule.get("name", {}).get("as", series)] = rule["metricsQuery"]
    return wanted, queries


def test_the_adapter_provides_the_metrics_of_the_autoscaler():
    wanted, queries = autoscaling_metrics()
    assert set(wanted) == set(queries)


@contextmanager
def process(command, folder, environ=None):
    """Run a server at free ports; yield its addresses, of the API and for probes, once ready."""
    log = folder / "log"
    options = ("--port", "0", "--set", "server.health_port=0")
    with (
        log.open("wb") as file,
        subprocess.Popen(
            [sys.executable, "-m", *command, *options],
            stdout=file,
            stderr=file,
            cwd=folder,
            env=environ,
        ) as server,
    ):
        try:
            deadline = time.monotonic() + 600
            while not (found := addresses(log.read_text())) or not is_ready(found[1]):
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield found
            server.terminate()
            assert server.wait(300) == 0, log.read_text()
        finally:
            server.kill()


def addresses(log):
    """Return the addresses that a server logged; None before it did."""
    found = [
        re.search(rf"{words} on (https?://[\w.:]+)", log)
        for words in ("listening", "health probes")
    ]
    return [each[1].replace("0.0.0.0", "127.0.0.1") for each in found] if all(found) else None


def is_ready(health):
    try:
        return read(f"{health}/readyz") == {"status": "ready"}
    except urllib.error.HTTPError as error:
        return error.close()


@contextmanager
def pod(folder, text):
    """Run a server with the config of a pod, and with the files of its secrets; as `process`."""
    for name in ("keys", "tls"):
        (folder / name).mkdir()
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "tls/tls.key")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(folder / "tls/tls.crt", append=True)
    subprocess.run(
        [sys.executable, "-m", "vlmkit", "keys", "add", "a", "--file", "keys/keys.jsonl"],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    (folder / "vlmkit.toml").write_text(text.replace("/etc/vlmkit", str(folder)))
    with process(shlex.split("vlmkit serve --config vlmkit.toml"), folder) as (api, health):
        assert api.startswith("https://")
        trust = ssl.create_default_context()
        authority.configure_trust(trust)
        yield api, health, trust


def test_the_config_of_a_pod_serves_and_exports_what_the_autoscaler_asks_for(tmp_path):
    with (
        pod(tmp_path, (BASE / "vlmkit.toml").read_text()) as (_, health, _),
        urllib.request.urlopen(f"{health}/metrics", timeout=300) as answer,
    ):
        page = answer.read().decode()
    exported = set(re.findall(r"^(vlmkit_\w+)\{", page, re.MULTILINE))
    _, queries = autoscaling_metrics()
    used = {name for query in queries.values() for name in re.findall(r"(vlmkit_\w+)\{", query)}
    assert used
    assert used <= exported


def shown(url, trust=None):
    """Return the status and the text that a browser without a key gets."""
    asked = urllib.request.Request(url, headers={"accept": "text/html"})
    try:
        with urllib.request.urlopen(asked, timeout=300, context=trust) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("has_page", [False, True])
def test_a_pod_has_a_web_page_only_with_the_settings_of_the_guide(has_page, tmp_path):
    text = (BASE / "vlmkit.toml").read_text()
    (sections,) = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    before, _, last = text.partition("[plugins]")
    only = tomllib.loads(sections)["plugins"]["only"]
    assert only == [*tomllib.loads(last)["only"], "vlmkit-webui"]
    with pod(tmp_path, before + sections if has_page else text) as (api, _, trust):
        status, start = shown(f"{api}/", trust)
        assert status == 200
        assert ("webui/app.js" in start) is has_page
        assert "demo" not in start
        assert shown(f"{api}/webui/app.js", trust)[0] == (200 if has_page else 404)
        assert shown(f"{api}/v1/models", trust)[0] == 401


def test_a_variable_enables_the_web_page_of_a_container(tmp_path):
    (variable,) = re.findall(r"--env (VLMKIT_APIS\w+)=true", GUIDE.read_text())
    own = {"VLMKIT_CONFIG": str(DEPLOY / "vlmkit.toml"), "VLMKIT_SERVER__API_KEY": "k" * 16}
    for value, has_page in (("true", True), ("false", False)):
        environ = os.environ | own | {variable: value}
        with process(["vlmkit", "serve"], tmp_path, environ) as (api, _):
            assert ("webui/app.js" in shown(f"{api}/")[1]) is has_page


def read(url):
    with urllib.request.urlopen(url, timeout=300) as answer:
        return json.load(answer)


def test_the_config_of_the_images_serves_with_a_key_from_the_environment(tmp_path):
    own = {"VLMKIT_CONFIG": str(DEPLOY / "vlmkit.toml"), "VLMKIT_SERVER__API_KEY": "k" * 16}
    with process(["vlmkit", "serve"], tmp_path, os.environ | own) as (_, health):
        (probe,) = re.findall(r"urlopen\('(http://127.0.0.1:8001)(/\w+)'", DOCKERFILE)
        assert read(f"{health}{probe[1]}") == {"status": "ok"}
    server = settings(DEPLOY / "vlmkit.toml")["server"]
    assert probe[0] == f"http://{server['health_host']}:{server['health_port']}"


def test_the_config_of_the_images_serves_nobody_without_a_key(tmp_path):
    command = [sys.executable, "-m", "vlmkit", "serve", "--config", str(DEPLOY / "vlmkit.toml")]
    done = subprocess.run(
        [*command, "--check"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode != 0
    assert "key" in done.stderr


def test_files_of_compose_follow_its_specification():
    paths = [str(DEPLOY / "compose" / name) for name in ("compose.yaml", "cuda.yaml")]
    schema = ("--builtin-schema", "vendor.compose-spec")
    command = [sys.executable, "-m", "check_jsonschema", *schema, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_that_compose_mounts_exists_or_is_a_secret_that_git_ignores():
    mounted = [
        volume.partition(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    assert len(mounted) == 5
    assert all((DEPLOY / "compose" / path).is_file() for path in mounted)
    secret = {Path(each["file"]).name for each in COMPOSE["secrets"].values()}
    assert secret == set((DEPLOY / "compose/.gitignore").read_text().split())


def test_the_settings_of_compose_are_settings(tmp_path):
    stated = COMPOSE["services"]["vlmkit"]["environment"]
    (tmp_path / "key").write_text("k" * 16)
    stated |= {"VLMKIT_SERVER__API_KEY_FILE": str(tmp_path / "key")}
    config = str(DEPLOY / "vlmkit.toml")
    command = [sys.executable, "-m", "vlmkit", "config", "check", "--config", config]
    done = subprocess.run(
        command, env=os.environ | stated, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_prometheus_scrapes_the_health_port_and_grafana_asks_prometheus():
    scraped = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    port = settings(DEPLOY / "vlmkit.toml")["server"]["health_port"]
    assert scraped["scrape_configs"][0]["static_configs"] == [{"targets": [f"vlmkit:{port}"]}]
    source = yaml.safe_load((DEPLOY / "compose/grafana/datasource.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def test_the_dashboard_of_compose_is_that_of_the_plugin():
    shipped = json.loads((DEPLOY / "compose/grafana/vlmkit.json").read_text())
    assert shipped == dashboard(), (
        "python -m vlmkit_monitor dashboard > deploy/compose/grafana/vlmkit.json"
    )


def test_no_service_of_compose_has_capabilities_or_is_reached_from_other_machines():
    for service in COMPOSE["services"].values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert COMPOSE["services"]["vlmkit"]["read_only"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_rates_the_exposure_of_the_unit_at_2_or_less():
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager"]
    done = subprocess.run([*command, str(UNIT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


WITHOUT_WRITABLE_CODE = """
import ctypes, mmap, os, sys
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    sys.exit(77)  # an older kernel
try:
    mmap.mmap(-1, 1, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)
except PermissionError:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's rule")
def test_the_onnx_engine_needs_no_memory_that_is_writable_and_executable():
    assert "\nMemoryDenyWriteExecute=true\n" in UNIT.read_text()
    picture = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures/shapes.png"
    ask = ["-m", "vlmkit", "ask", "demo", "What is it?", "--image", str(picture)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_WRITABLE_CODE, *ask, "--set", "engine.use=onnx"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("the kernel has no such rule")
    assert done.returncode == 0, done.stderr
    assert "circle" in done.stdout


def test_the_guide_names_files_that_exist():
    named = set(re.findall(r"\bdeploy/[\w./-]+\w", GUIDE.read_text()))
    assert named
    assert all((ROOT / path).exists() for path in named)


SERVICE = "deploy/kuberay/ray_service.yaml"


def ray_objects():
    return {each["kind"]: each for each in documents((ROOT / SERVICE).read_text())}


def pods_of_ray():
    """Return the pods of the head and of each group of workers."""
    cluster = ray_objects()["RayService"]["spec"]["rayClusterConfig"]
    return [each["template"] for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pods_of_ray_follow_the_schema_of_kubernetes(version):
    for number, template in enumerate(pods_of_ray()):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}}
        kubernetes_validate.validate(pod | {"spec": template["spec"]}, version, strict=True)
    for kind in ("ConfigMap", "NetworkPolicy"):
        kubernetes_validate.validate(ray_objects()[kind], version, strict=True)


COUNT = {"type": "integer", "minimum": 0}
RAY_CLUSTER = {
    "type": "object",
    "required": ["rayVersion", "headGroupSpec", "workerGroupSpecs"],
    "additionalProperties": False,
    "properties": {
        "rayVersion": {"type": "string"},
        "enableInTreeAutoscaling": {"type": "boolean"},
        "headGroupSpec": {
            "type": "object",
            "required": ["rayStartParams", "template"],
            "additionalProperties": False,
            "properties": {
                "rayStartParams": {"additionalProperties": {"type": "string"}},
                "template": {"type": "object", "required": ["spec"]},
            },
        },
        "workerGroupSpecs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["groupName", "rayStartParams", "template"],
                "additionalProperties": False,
                "properties": {
                    "groupName": {"type": "string"},
                    "replicas": COUNT,
                    "minReplicas": COUNT,
                    "maxReplicas": COUNT,
                    "rayStartParams": {"additionalProperties": {"type": "string"}},
                    "template": {"type": "object", "required": ["spec"]},
                },
            },
        },
    },
}
"""The parts of a RayService's ``rayClusterConfig`` that the manifest uses."""


def test_the_service_of_ray_serves_the_config_that_its_pods_have():
    found = ray_objects()
    service = found["RayService"]
    assert service["apiVersion"] == "ray.io/v1"
    assert set(service["spec"]) == {"serveConfigV2", "rayClusterConfig"}
    jsonschema.validate(service["spec"]["rayClusterConfig"], RAY_CLUSTER)
    serve = yaml.safe_load(service["spec"]["serveConfigV2"])
    (application,) = serve["applications"]
    assert application["import_path"] == "vlmkit_ray:app"
    for template in pods_of_ray():
        spec = template["spec"]
        volumes = {each["name"]: each for each in spec["volumes"]}
        (container,) = spec["containers"]
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        folder, _, file = application["args"]["config"].rpartition("/")
        assert (
            volumes[mounts[folder]]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
        )
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports["serve"] == serve["http_options"]["port"]
        config = tomllib.loads(found["ConfigMap"]["data"][file])
        assert Path(config["server"]["keys_file"]).parent.as_posix() in mounts
        assert container["env"][0] == {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}


def test_the_service_of_ray_has_the_version_that_the_extra_allows_and_a_valid_config(tmp_path):
    required = settings(ROOT / "plugins/vlmkit-ray/pyproject.toml")["project"]
    (ray,) = required["optional-dependencies"]["ray"]
    version = ray_objects()["RayService"]["spec"]["rayClusterConfig"]["rayVersion"]
    assert Requirement(ray).specifier.contains(version)
    config = ray_objects()["ConfigMap"]["data"]["vlmkit.toml"]
    (tmp_path / "keys.toml").write_text("")
    (tmp_path / "vlmkit.toml").write_text(config.replace("/etc/vlmkit-keys", str(tmp_path)))
    names, found = models_of(tmp_path / "vlmkit.toml", "ray", RaySettings)
    assert names == ("demo",)
    assert found.of("demo").max_replicas == 4
    drain_s = found.drain_timeout_s
    workers = pods_of_ray()[1]["spec"]
    assert workers["terminationGracePeriodSeconds"] >= drain_s
